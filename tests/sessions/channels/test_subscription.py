"""The messages that wait for one channel client, and the output that is left out."""

from __future__ import annotations

import pytest

from sessions.channels.subscription import MIB, QUEUE_MAX, Subscription
from sessions.channels.unread import Unread
from sessions.kernels.messages import Message
from sessions.tenants.kept_bytes import KeptBytes

KIB = 1024
LEFT_OUT = b"output was left out here"


def output(size: int) -> Message:
    return Message("iopub", {"msg_id": "o", "msg_type": "stream"}, {}, {}, {}, (), size, (b"", b"", b"", b"o"))


def status(state: str) -> Message:
    parts = (b"", b"", b"", state.encode())
    return Message("iopub", {"msg_id": "s", "msg_type": "status"}, {}, {}, {}, (), KIB, parts)


def alone() -> Subscription:
    """Return the queue of a client whose tenant has no other."""
    return Subscription("c", lambda: None, Unread(KeptBytes(), "acme"))


@pytest.fixture
def client() -> Subscription:
    return alone()


async def taken(client: Subscription) -> list[bytes]:
    """Take all messages that still wait for a client."""
    client.close()
    found = []
    while (message := await client.take()) is not None:
        found.append(LEFT_OUT if LEFT_OUT in message.parts[3] else message.parts[3])
    return found


async def test_a_large_message_behind_a_small_one_is_delivered(client: Subscription) -> None:
    for message in (status("busy"), output(10 * MIB), status("idle")):
        client.enqueue(message)
    assert await taken(client) == [b"busy", b"o", b"idle"]


async def test_output_behind_a_large_message_is_left_out_but_idle_is_delivered(client: Subscription) -> None:
    for message in (status("busy"), output(10 * MIB), output(KIB), output(KIB), status("idle")):
        client.enqueue(message)
    assert await taken(client) == [b"busy", b"o", LEFT_OUT, b"idle"]


async def test_output_is_left_out_while_the_queue_is_full(client: Subscription) -> None:
    for _ in range(2 * QUEUE_MAX // MIB):
        client.enqueue(output(MIB - 2 * KIB))
    client.enqueue(output(2 * MIB))
    assert await taken(client) == [b"o"] * (QUEUE_MAX // MIB) + [LEFT_OUT]


async def test_reading_makes_room_for_output_again(client: Subscription) -> None:
    for message in (output(10 * MIB), output(KIB)):
        client.enqueue(message)
    assert [(await client.take()) is not None for _ in range(2)] == [True, True]
    client.enqueue(output(KIB))
    assert await taken(client) == [b"o"]


async def test_an_undelivered_message_comes_first_and_statuses_are_kept_behind_it(client: Subscription) -> None:
    client.enqueue(output(10 * MIB))
    message = await client.take()
    assert message is not None
    client.put_back(message)
    for state in ("busy", "idle"):
        client.enqueue(status(state))
    client.enqueue(output(KIB))
    assert await taken(client) == [b"o", b"busy", b"idle", LEFT_OUT]


async def test_statuses_are_limited_too(client: Subscription) -> None:
    for _ in range(10 * QUEUE_MAX // (2 * KIB)):
        client.enqueue(status("busy"))
    states = await taken(client)
    assert len(states) * 2 * KIB <= 6 * MIB
    assert states[-1] == LEFT_OUT


async def test_a_message_that_the_old_connection_could_not_deliver_goes_to_the_new_one() -> None:
    old, new = alone(), alone()
    first, second = status("busy"), status("idle")
    old.enqueue(first)
    old.enqueue(second)
    taken = await old.take()
    assert taken is not None
    new.inherit(old)  # while the old connection still tries to send the first message
    old.put_back(taken)
    received = [await new.take(), await new.take()]
    assert [message and message.header["msg_id"] for message in received] == [
        first.header["msg_id"],
        second.header["msg_id"],
    ]
