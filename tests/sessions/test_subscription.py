"""What waits for one client, and what is left out of it."""

from __future__ import annotations

import pytest

from sessions.messages import Message
from sessions.subscription import MIB, QUEUE_MAX, Subscription

KIB = 1024
LEFT_OUT = b"output was left out here"


def output(size: int) -> Message:
    return Message("iopub", {"msg_id": "o", "msg_type": "stream"}, {}, {}, {}, (), size, (b"", b"", b"", b"o"))


def status(state: str) -> Message:
    parts = (b"", b"", b"", state.encode())
    return Message("iopub", {"msg_id": "s", "msg_type": "status"}, {}, {}, {}, (), KIB, parts)


@pytest.fixture
def client() -> Subscription:
    return Subscription("c", lambda: None)


async def taken(client: Subscription) -> list[bytes]:
    """What a client that reads on gets."""
    client.close()
    found = []
    while (message := await client.take()) is not None:
        found.append(LEFT_OUT if LEFT_OUT in message.parts[3] else message.parts[3])
    return found


async def test_what_is_large_comes_whole_though_something_small_stands_before_it(client: Subscription) -> None:
    for message in (status("busy"), output(10 * MIB), status("idle")):
        client.feed(message)
    assert await taken(client) == [b"busy", b"o", b"idle"]


async def test_behind_it_output_is_left_out_and_its_end_is_not(client: Subscription) -> None:
    for message in (status("busy"), output(10 * MIB), output(KIB), output(KIB), status("idle")):
        client.feed(message)
    assert await taken(client) == [b"busy", b"o", LEFT_OUT, b"idle"]


async def test_what_comes_while_much_waits_is_left_out_however_small(client: Subscription) -> None:
    for _ in range(2 * QUEUE_MAX // MIB):
        client.feed(output(MIB - 2 * KIB))
    client.feed(output(2 * MIB))
    assert await taken(client) == [b"o"] * (QUEUE_MAX // MIB) + [LEFT_OUT]


async def test_after_it_was_read_there_is_room_again(client: Subscription) -> None:
    for message in (output(10 * MIB), output(KIB)):
        client.feed(message)
    assert [(await client.take()) is not None for _ in range(2)] == [True, True]
    client.feed(output(KIB))
    assert await taken(client) == [b"o"]


async def test_what_could_not_be_delivered_comes_first_and_keeps_no_status_out(client: Subscription) -> None:
    client.feed(output(10 * MIB))
    message = await client.take()
    assert message is not None
    client.give_back(message)
    for state in ("busy", "idle"):
        client.feed(status(state))
    client.feed(output(KIB))
    assert await taken(client) == [b"o", b"busy", b"idle", LEFT_OUT]


async def test_even_statuses_have_an_end(client: Subscription) -> None:
    for _ in range(10 * QUEUE_MAX // (2 * KIB)):
        client.feed(status("busy"))
    states = await taken(client)
    assert len(states) * 2 * KIB <= 6 * MIB
    assert states[-1] == LEFT_OUT
