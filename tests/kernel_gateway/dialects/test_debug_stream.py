"""A cell is debugged over a stream: its events say where it stands, and a WebSocket takes commands."""

from __future__ import annotations

import json
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from kernel_gateway.dialects.native.events import Event
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import failure, process_only, streamed, until
from tests.kernel_gateway.sockets import Socket, connected

CODE = "def f(n):\n    m = n + 1\n    return m\n\nfor n in range(3):\n    print(f(n))\n"
PLAN = {"breakpoints": [{"line": 3}]}


def idle(gateway: Gateway, session: str) -> bool:
    return bool(gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")


async def acted(socket: Socket, command: str, **fields: object) -> list[dict[str, object]]:
    """Send a command; return the events up to its answer."""
    await socket.send(command=command, id="act", **fields)
    return await socket.until("debug")


@process_only
async def test_a_socket_tells_where_the_cell_stands_and_takes_commands(gateway: Gateway, debugged: str) -> None:
    async with connected(gateway, debugged) as socket:
        await socket.send(code=CODE, debug=PLAN, id="cell")
        started, stopped = await socket.until("stopped")
        assert started["type"] == "started"
        frame = {"frameId": 0, "name": "f", "line": 3, "source": "this cell", "text": "return m"}
        told = {"type": "stopped", "reason": "breakpoint", "description": None, "line": 3, "frame": frame}
        assert stopped == told | {"id": "cell"}
        [answer] = await acted(socket, "evaluate", expression="m * 10")
        assert (answer["value"], answer["id"]) == ({"name": "m * 10", "value": "10", "type": "int"}, "act")
        events = await acted(socket, "continue")
        assert [event["type"] for event in events if event["type"] != "output"] == ["continued", "stopped", "debug"]
        assert (events[-1]["state"], events[-1]["reason"]) == ("stopped", "breakpoint")
        await socket.send(command="dance", id=7)
        await socket.send(command="launch", code="1", id=8)
        refused = [(event["error"]["code"], event["id"]) for event in [await socket.event(), await socket.event()]]
        assert refused == [("SB002", 7), ("SB002", 8)]
        await socket.send(command="setBreakpoints", breakpoints=[])
        await socket.until("debug")
        await socket.send(command="continue", within=0)
        rest = await socket.until("result")
        assert rest[-1]["status"] == "ok"
        for event in [started, stopped, answer, *events, *rest]:
            Event.model_validate(event)
        assert await socket.text("f(1)") == "2"
        await socket.send(command="next")
        assert (await socket.event())["error"]["code"] == "SB071"


@process_only
async def test_a_debugged_cell_ends_when_its_socket_closes(gateway: Gateway, debugged: str) -> None:
    async with connected(gateway, debugged) as socket:
        await socket.run("before = 1")
        await socket.send(code=CODE, debug=PLAN)
        await socket.until("stopped")
        assert not idle(gateway, debugged)
    until(lambda: idle(gateway, debugged))
    assert gateway.text(debugged, "before, f(1)") == "(1, 2)"


@process_only
def test_a_stream_tells_where_the_cell_stands_while_others_act(gateway: Gateway, debugged: str) -> None:
    def act(command: str) -> None:
        asked = {"command": command, "within": 0}
        assert gateway.call("POST", f"/v1/sessions/{debugged}/debug", json=asked).json()["state"] in {
            "running",
            "stopped",
            "ended",
        }

    lines = []
    with streamed(gateway, debugged, CODE, debug={"breakpoints": [{"line": 2}], "exceptions": ["raised"]}) as events:
        for event in events:
            Event.model_validate(event)
            if event["type"] == "stopped":
                lines.append(event["line"])
                act("next" if len(lines) < 3 else "continue")
    assert lines[:4] == [2, 3, 6, 2]
    assert event["status"] == "ok"


@process_only
def test_a_debugged_cell_ends_when_the_client_of_its_stream_leaves(gateway: Gateway, debugged: str) -> None:
    with closing(HTTPConnection(urlsplit(gateway.url).netloc)) as leaving:
        headers = {"Authorization": f"Bearer {KEYS['alice']}", "Accept": "text/event-stream"}
        leaving.request("POST", f"/v1/sessions/{debugged}/execute", json.dumps({"code": CODE, "debug": PLAN}), headers)
        answer = leaving.getresponse()
        until(lambda: answer.readline().startswith(b"event: stopped"))
        answer.close()
    until(lambda: idle(gateway, debugged))
    assert gateway.text(debugged, "f(1)") == "2"


@process_only
@pytest.mark.parametrize(
    "fields", [{}, {"wait": False}, {"breakpoints": [{"line": 9}]}], ids=["no stream", "no client", "no such line"]
)
def test_a_debugged_cell_needs_a_reader_and_lines_that_exist(
    gateway: Gateway, session: str, fields: dict[str, object]
) -> None:
    lines = fields.pop("breakpoints", None)
    debug = {"debug": {} if lines is None else {"breakpoints": lines}}
    accept = {} if lines is None else {"Accept": "text/event-stream"}
    answer = gateway.call(
        "POST", f"/v1/sessions/{session}/execute", json={"code": "1", **debug, **fields}, headers=accept
    )
    assert failure(answer) == (HTTPStatus.BAD_REQUEST, "SB002")


@process_only
async def test_an_interrupt_ends_a_cell_that_stands_and_stops_it_nowhere_else(gateway: Gateway, debugged: str) -> None:
    async with connected(gateway, debugged) as socket:
        await socket.send(code=CODE, debug=PLAN | {"exceptions": ["raised", "uncaught"]})
        await socket.until("stopped")
        await socket.send(interrupt=True)
        events = await socket.until("result")
        assert ("stopped" in {event["type"] for event in events}, events[-1]["status"]) == (False, "interrupted")
