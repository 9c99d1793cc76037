"""Requests to the helper of disks: several at a time, each with its own answer or failure."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sessions.backends.docker.disks.helper import HelperFailed, Requests
from sessions.backends.docker.engine.stdio_channel import StdioChannel
from sessions.model.tasks import spawn
from tests.sessions.backends.docker.test_golden import framed

#: seconds for an answer
LONG = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Requests, socket.socket]]:
    """Requests, and the connection of a helper that does what the test does."""
    own, helper = socket.socketpair()
    with own, helper:
        requests = Requests(StdioChannel(own, b"", HelperFailed))
        yield requests, helper
        requests.end()


async def asked(requests: Requests, helper: socket.socket, *names: str) -> dict[str, tuple[Any, int]]:
    """Ask for each name in a thread; return the task and the number of each request that the helper got."""
    found = {}
    for name in names:
        task = spawn(asyncio.to_thread(requests.ask, {"name": name}, LONG), name)
        got = json.loads(await asyncio.to_thread(helper.recv, 1000))
        assert got["name"] == name
        found[name] = task, got["id"]
    return found


def answer(helper: socket.socket, **content: Any) -> None:
    helper.sendall(framed(json.dumps(content).encode() + b"\n"))


async def test_each_request_gets_its_own_answer_in_any_order(ends: tuple[Requests, socket.socket]) -> None:
    requests, helper = ends
    open_ = await asked(requests, helper, "a", "b", "c")
    answer(helper, id=99, device="of no request")
    for name in ("c", "a", "b"):
        task, number = open_[name]
        answer(helper, id=number, device=name)
        assert await task == {"device": name}


async def test_the_end_of_the_helper_fails_all_requests_and_later_ones(ends: tuple[Requests, socket.socket]) -> None:
    requests, helper = ends
    open_ = await asked(requests, helper, "a", "b")
    helper.shutdown(socket.SHUT_RDWR)
    for task, _ in open_.values():
        with pytest.raises(HelperFailed, match="ended"):
            await task
    with pytest.raises(HelperFailed, match="ended"):
        requests.ask({"name": "c"}, LONG)


async def test_ending_the_channel_fails_what_waits(ends: tuple[Requests, socket.socket]) -> None:
    requests, helper = ends
    open_ = await asked(requests, helper, "a")
    await asyncio.to_thread(requests.end)
    with pytest.raises(HelperFailed, match="ended"):
        await open_["a"][0]


async def test_a_request_without_an_answer_fails_and_the_others_go_on(ends: tuple[Requests, socket.socket]) -> None:
    requests, helper = ends
    open_ = await asked(requests, helper, "a")
    with pytest.raises(HelperFailed, match="no answer"):
        await asyncio.to_thread(requests.ask, {"name": "silent"}, 0.05)
    answer(helper, id=open_["a"][1], device="a")
    assert await open_["a"][0] == {"device": "a"}


async def test_the_helper_of_an_older_image_is_named_as_the_reason(ends: tuple[Requests, socket.socket]) -> None:
    requests, helper = ends
    open_ = await asked(requests, helper, "a")
    answer(helper, device="/dev/loop1")
    with pytest.raises(HelperFailed, match="make image"):
        await open_["a"][0]
