"""Cells are debugged through the client library, on process kernels."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from kernel_gateway.client import AsyncSession, GatewayError, Session
from sessions.model.tasks import spawn
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import HANGS, exists, until

CODE = "def f(n):\n    m = n + 1\n    return m\nx = f(41)\n"
STOPS = {"breakpoints": [{"line": 3}]}


@pytest.fixture
def session(debugged: str) -> str:
    """The session that tests of the debugger share."""
    return debugged


def values(seen: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in seen["variables"]}


def idle(gateway: Gateway, session: str) -> bool:
    return bool(gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")


def test_a_cell_is_stepped_and_its_exception_is_looked_at(s: Session) -> None:
    seen = s.debug("launch", code=CODE, **STOPS)
    while seen["state"] == "running":  # on a slow machine
        seen = s.debug("wait")
    assert (seen["state"], seen["frames"][0]["name"], values(seen)) == ("stopped", "f", {"n": "41", "m": "42"})
    assert s.debug("evaluate", expression="m * 2")["value"]["value"] == "84"
    seen = s.debug("continue")
    while seen["state"] == "running":
        seen = s.debug("wait")
    assert (seen["state"], s.run("x").value) == ("ended", 42)
    with pytest.raises(GatewayError, match="SB071"):
        s.debug("next")
    assert s.run("f(None)").status == "error"
    seen = s.debug("variables")
    assert (seen["state"], seen["description"].partition(":")[0]) == ("post_mortem", "TypeError")
    assert values(seen) == {"n": "None"}
    assert s.debug("evaluate", expression="n is None")["value"]["value"] == "True"


async def test_a_stream_says_where_the_cell_stands(gateway: Gateway, session: str) -> None:
    async with AsyncSession(gateway.url, KEYS["alice"], session) as s:
        told = []
        async for event in s.stream(CODE, debug=STOPS):
            told.append(event.type)
            if event.type == "stopped":
                assert (event.fields["line"], event.fields["frame"]["text"]) == (3, "return m")
                assert (await s.debug("evaluate", expression="m"))["value"]["value"] == "42"
                await s.debug("continue", within=0)
        assert told == ["started", "stopped", "continued", "result"]
        assert (await s.run("x")).value == 42


def test_who_leaves_the_stream_of_a_debugged_cell_ends_it(s: Session, gateway: Gateway) -> None:
    s.run("before = 1")
    for event in s.stream(CODE, debug=STOPS):
        if event.type == "stopped":
            break
    until(lambda: idle(gateway, s.name))
    assert s.run("before, f(1)").value == (1, 2)


@pytest.mark.full
async def test_a_cancelled_command_ends_the_debugged_cell(gateway: Gateway, session: str) -> None:
    async with AsyncSession(gateway.url, KEYS["alice"], session) as s:
        await s.run("before = 1")
        waiting = spawn(s.debug("launch", code=HANGS), "launch")
        await asyncio.to_thread(until, lambda: exists(gateway, session, "begun"))
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(until, lambda: idle(gateway, session))
        assert (await s.run("before")).value == 1
        await s.files.remove("begun")
