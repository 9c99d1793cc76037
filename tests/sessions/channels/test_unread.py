"""What waits for channel clients that do not read: counted as it is held, bounded for each tenant and in all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from sessions.channels.subscription import QUEUE_MAX, Subscription
from sessions.channels.unread import MESSAGE_COST, Unread
from sessions.kernels.messages import Message
from sessions.model.tasks import spawn
from sessions.tenants.kept_bytes import KeptBytes

MIB = 1024**2
LEFT_OUT = b"output was left out here"


def output(size: int = MIB) -> Message:
    header = {"msg_id": "o", "msg_type": "stream"}
    return Message("iopub", header, {}, {}, {"text": "x"}, (), size, (b"{}", b"{}", b"{}", str(size).encode()))


class Room:
    """The clients of one session, each of which remembers whether it was disconnected."""

    def __init__(self, kept: KeptBytes, tenant: str = "acme") -> None:
        self.unread = Unread(kept, tenant)
        self.cut = list[str]()

    def client(self, name: str) -> Subscription:
        return Subscription(name, lambda: None, self.unread, lambda: self.cut.append(name))


def bounded(per_tenant: int = 100 * MIB, in_all: int = 100 * MIB) -> KeptBytes:
    return KeptBytes(per_tenant, in_all)


async def test_a_message_for_several_clients_counts_once() -> None:
    kept = bounded()
    room = Room(kept)
    one, two = room.client("one"), room.client("two")
    message = output()
    for client in (one, two):
        client.enqueue(message)
    assert kept.size == MIB + 2 * MESSAGE_COST
    two.enqueue(output())
    assert kept.size == 2 * MIB + 3 * MESSAGE_COST, "the control: another message counts"


async def test_what_is_being_sent_counts_until_the_client_has_read_it() -> None:
    kept = bounded()
    room = Room(kept)
    client = room.client("one")
    client.enqueue(output())
    assert await client.take() is not None
    assert kept.size == 2 * MIB + MESSAGE_COST, "the message, and the copy for its client"
    client.enqueue(output(MIB // 2))
    assert await client.take() is not None
    assert kept.size == MIB + MESSAGE_COST
    client.detach()
    assert kept.size == 0


@pytest.mark.parametrize(
    "ends",
    [
        Subscription.discard,
        Subscription.drop_unread,
        lambda client: client.put_back(output(3)) or client.discard(),
        lambda client: client.close() or client.discard(),
    ],
)
async def test_nothing_counts_of_a_client_that_is_gone(ends: Callable[[Subscription], object]) -> None:
    kept = bounded()
    client = Room(kept).client("one")
    for _ in range(3):
        client.enqueue(output())
    assert await client.take() is not None
    assert kept.size > 3 * MIB
    ends(client)
    assert kept.size < 2 * MESSAGE_COST  # what tells a client that it has missed something


async def test_a_client_that_takes_over_has_the_bytes_and_the_old_ones_copy_stays_counted() -> None:
    kept = bounded()
    room = Room(kept)
    old = room.client("one")
    for _ in range(3):
        old.enqueue(output())
    assert await old.take() is not None
    new = room.client("one")
    new.inherit(old)
    assert kept.size == 4 * MIB + 3 * MESSAGE_COST
    old.discard()
    assert kept.size == 2 * MIB + 2 * MESSAGE_COST
    assert [await new.take() is not None for _ in range(2)] == [True, True]


async def test_many_sessions_of_one_tenant_share_its_bytes_and_the_slowest_client_goes() -> None:
    kept = bounded(10 * MIB)
    rooms = [Room(kept) for _ in range(20)]
    clients = [room.client("one") for room in rooms]
    quick = rooms[0].client("quick")
    for client in clients:
        for _ in range(QUEUE_MAX // MIB + 2):
            client.enqueue(output())
    quick.enqueue(output(10))
    assert kept.size <= 10 * MIB + MIB
    cut = [room for room in rooms if room.cut]
    assert len(cut) >= 17
    assert not any("quick" in room.cut for room in rooms)
    loose = bounded(1000 * MIB, 1000 * MIB)
    for _ in range(20):
        client = Room(loose).client("one")
        for _ in range(QUEUE_MAX // MIB + 2):
            client.enqueue(output())
    assert loose.size > 60 * MIB, "the control: each is within its own bound"


async def test_one_tenant_does_not_disconnect_the_clients_of_another() -> None:
    kept = bounded(100 * MIB, 10 * MIB)
    other = Room(kept, "other")
    reads = other.client("reads")
    reads.enqueue(output())
    rooms = [Room(kept, "evil") for _ in range(20)]
    for room in rooms:
        client = room.client("one")
        for _ in range(4):
            client.enqueue(output())
    assert other.cut == []
    assert any(room.cut for room in rooms)
    assert kept.size <= 11 * MIB


async def test_a_client_that_was_disconnected_is_told_when_it_returns() -> None:
    room = Room(bounded(3 * MIB))
    client = room.client("one")
    for _ in range(4):
        client.enqueue(output())
    assert room.cut
    again = room.client("one")
    client.detach()
    again.inherit(client)
    first = await again.take()
    assert first is not None
    assert LEFT_OUT in first.parts[3]


@pytest.mark.parametrize(("away", "times"), [(False, 1), (True, 0)])
async def test_a_client_is_disconnected_once_and_not_when_it_is_away(away: bool, times: int) -> None:  # noqa: FBT001
    kept = bounded(3 * MIB)
    room = Room(kept)
    client = room.client("one")
    if away:
        client.detach()
    for _ in range(20):
        client.enqueue(output())
    assert room.cut == ["one"] * times
    assert kept.size <= 3 * MIB, "it keeps no more for that"


async def test_bytes_of_a_closed_session_count_until_its_clients_are_gone() -> None:
    kept = bounded()
    room = Room(kept)
    client = room.client("one")
    client.enqueue(output())
    client.close()
    room.unread.close()
    assert kept.size > MIB
    assert await client.take() is not None
    assert await client.take() is None
    assert (kept.size, kept._tenants) == (0, {})


async def test_no_message_that_waits_keeps_its_parsed_content() -> None:
    client = Room(bounded()).client("one")
    message = replace(output(), content={"data": [0.0] * 1000})
    waits = spawn(client.take(), "take")  # its connection is slow: it takes when it has sent the one before
    await asyncio.sleep(0)
    client.enqueue(message)
    taken = await waits
    assert taken is not None
    assert (taken.content, taken.parts) == ({}, message.parts)
