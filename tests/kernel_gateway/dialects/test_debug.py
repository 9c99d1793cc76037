"""A cell is debugged over the API: breakpoints, steps, frames; and the frames of an uncaught exception."""

from __future__ import annotations

import json
import re
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kernel_gateway.dialects.native.debug import DebugInfo
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import HANGS, exists, failure, process_only, until
from tests.kernel_gateway.mcp import call

AREA = """def area(w, h):
    product = w * h
    return product

for i in range(5):
    x = area(i, 2)
print('done', x)
"""


def debug(gateway: Gateway, session: str, command: str, **fields: Any) -> dict[str, Any]:
    answer = gateway.call("POST", f"/v1/sessions/{session}/debug", json={"command": command, **fields})
    assert answer.status_code == HTTPStatus.OK, answer.text
    DebugInfo.model_validate(answer.json())
    seen: dict[str, Any] = answer.json()
    while seen["state"] == "running" and command != "wait":  # each wait returns after some seconds
        seen = debug(gateway, session, "wait")
    return seen


def refused(gateway: Gateway, session: str, command: str, **fields: Any) -> tuple[int, str]:
    return failure(gateway.call("POST", f"/v1/sessions/{session}/debug", json={"command": command, **fields}))


def values(seen: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in seen["variables"]}


def outcome(gateway: Gateway, session: str, seen: dict[str, Any]) -> dict[str, Any]:
    path = f"/v1/sessions/{session}/executions/{seen['execution']}"
    until(lambda: gateway.call("GET", path).json()["result"] is not None)
    found: dict[str, Any] = gateway.call("GET", path).json()
    return found


def test_a_cell_stops_is_stepped_and_ends(gateway: Gateway, session: str) -> None:
    seen = debug(gateway, session, "launch", code=AREA, breakpoints=[{"line": 3, "condition": "w == 3"}])
    assert (seen["error"], seen["state"], seen["reason"]) == (None, "stopped", "breakpoint"), seen
    assert [(frame["name"], frame["line"], frame["text"]) for frame in seen["frames"]] == [
        ("area", 3, "return product"),
        ("<module>", 6, "x = area(i, 2)"),
    ]
    assert values(seen) == {"w": "3", "h": "2", "product": "6"}
    assert gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "busy"
    assert debug(gateway, session, "evaluate", expression="product * 7")["value"]["value"] == "42"
    assert debug(gateway, session, "evaluate", expression="i", frameId=1)["value"]["value"] == "3"
    assert refused(gateway, session, "evaluate", expression="1 / 0") == (HTTPStatus.CONFLICT, "SB071")
    assert values(debug(gateway, session, "variables", frameId=1))["i"] == "3"
    assert debug(gateway, session, "stepOut")["frames"][0]["name"] == "<module>"
    assert [debug(gateway, session, "next")["frames"][0]["line"] for _ in range(2)] == [5, 6]
    ended = debug(gateway, session, "continue")
    assert ended["state"] == "ended"
    told = outcome(gateway, session, ended)
    assert (told["result"]["status"], told["outputs"][0]["text"]) == ("ok", "done 8\n")
    assert gateway.text(session, "area(4, 5)") == "20"


def test_after_an_uncaught_exception_its_frames_are_looked_at(gateway: Gateway, session: str) -> None:
    code = "rows = [3, 0]\ndef mean(total, count):\n    scale = 10\n    return scale * total / count\nmean(*rows)"
    gateway.execute(session, "import math")
    assert debug(gateway, session, "stackTrace")["state"] == "none"
    assert gateway.execute(session, code)["status"] == "error"
    assert gateway.execute(session, "rows.append(5)")["status"] == "ok"
    seen = debug(gateway, session, "variables")
    assert (seen["state"], seen["description"]) == ("post_mortem", "ZeroDivisionError: division by zero")
    assert [(frame["name"], frame["line"], frame["source"], frame["text"]) for frame in seen["frames"]] == [
        ("mean", 4, "cell 2", "return scale * total / count"),
        ("<module>", 5, "cell 2", "mean(*rows)"),
    ]
    assert values(seen) == {"total": "3", "count": "0", "scale": "10"}
    assert values(debug(gateway, session, "variables", frameId=1))["rows"] == "[3, 0, 5]"
    assert debug(gateway, session, "evaluate", expression="[scale * n for n in rows if n > count]")["value"] == {
        "name": "[scale * n for n in rows if n > count]",
        "value": "[30, 50]",
        "type": "",
    }
    assert refused(gateway, session, "evaluate", expression="total / count") == (HTTPStatus.CONFLICT, "SB071")
    assert refused(gateway, session, "variables", frameId=2) == (HTTPStatus.CONFLICT, "SB071")
    assert debug(gateway, session, "evaluate", expression="scale = 99; scale")["value"]["value"] == "99"
    assert values(debug(gateway, session, "stackTrace"))["scale"] == "10"
    assert gateway.text(session, "'scale' in globals()") == "False"


@process_only
def test_a_debugger_that_does_not_start_says_why_and_starts_later(gateway: Gateway, session: str) -> None:
    broken = "import debugpy\nlisten, debugpy.listen = debugpy.listen, lambda address: 1 / 0"
    assert gateway.execute(session, broken)["status"] == "ok"
    seen = debug(gateway, session, "launch", code="x = 1", breakpoints=[{"line": 1}])
    assert "initialize: ZeroDivisionError: division by zero" in seen["error"]["message"]
    gateway.execute(session, "debugpy.listen = listen")
    seen = debug(gateway, session, "launch", code="x = 1", breakpoints=[{"line": 1}])
    assert (seen["error"], seen["state"]) == (None, "stopped")


#: lets another program take each port that a program has found free
TAKES_FREED_PORTS = """
import socket, zmq
taken, unbind = [], zmq.Socket.unbind
def freed(self, address):
    unbind(self, address)
    taken.append(socket.create_server(('127.0.0.1', int(address.rpartition(':')[2]))))
zmq.Socket.unbind = freed
"""


@process_only
def test_the_debuggers_port_cannot_be_taken_before_it_listens(gateway: Gateway, session: str) -> None:
    assert gateway.execute(session, TAKES_FREED_PORTS)["status"] == "ok"
    seen = debug(gateway, session, "launch", code="x = 1", breakpoints=[{"line": 1}])
    assert (seen["error"], seen["state"]) == (None, "stopped")


@process_only
def test_the_example_of_the_page_stops(gateway: Gateway, debugged: str) -> None:
    page = (Path(__file__).parents[3] / "docs/api.md").read_text()
    [example] = re.findall(r"```json debug\n(.*?)```", page, re.DOTALL)
    seen = debug(gateway, debugged, **json.loads(example))
    assert (seen["state"], values(seen)["n"]) == ("stopped", "2")


@process_only
def test_a_cell_stops_where_an_exception_leaves_it_and_where_one_is_raised(gateway: Gateway, debugged: str) -> None:
    code = "def f(a):\n    try:\n        int('x')\n    except ValueError:\n        pass\n    return 1 / a\nf(0)"
    seen = debug(gateway, debugged, "launch", code=code, exceptions=["uncaught"])
    assert (seen["state"], seen["reason"]) == ("stopped", "exception")
    assert seen["description"] == "ZeroDivisionError: division by zero"
    assert values(seen)["a"] == "0", seen
    assert debug(gateway, debugged, "continue")["state"] == "ended"
    assert debug(gateway, debugged, "stackTrace")["state"] == "post_mortem"
    seen = debug(gateway, debugged, "launch", code=code, exceptions=["raised"])
    assert (seen["frames"][0]["line"], seen["description"].partition(":")[0]) == (3, "ValueError")
    assert debug(gateway, debugged, "terminate")["state"] == "ended"


@process_only
def test_a_debugged_cell_is_ended_and_later_cells_do_not_stop(gateway: Gateway, debugged: str) -> None:
    code = "def f():\n    return 1\nx = f()\nprint('after')"
    for _ in range(2):
        seen = debug(gateway, debugged, "launch", code=code, breakpoints=[{"line": 2}])
        assert [frame["name"] for frame in seen["frames"]] == ["f", "<module>"], seen
        assert refused(gateway, debugged, "launch", code="1") == (HTTPStatus.CONFLICT, "SB071")
        ended = debug(gateway, debugged, "terminate")
        assert ended["state"] == "ended"
        told = outcome(gateway, debugged, ended)
        assert told["result"]["status"] == "interrupted"
        assert [output["output_type"] for output in told["outputs"]] == ["error"]
        assert "pydevd" not in "".join(told["outputs"][0]["traceback"])
        frames = debug(gateway, debugged, "stackTrace")["frames"]
        assert [(frame["name"], frame["line"]) for frame in frames] == [("f", 2), ("<module>", 3)]
        assert gateway.text(debugged, "f()") == "1"
    assert refused(gateway, debugged, "terminate") == (HTTPStatus.CONFLICT, "SB071")


@process_only
def test_log_points_and_hits_are_counted_and_breakpoints_replaced(gateway: Gateway, debugged: str) -> None:
    places = [{"line": 6, "logMessage": "i is {i}"}, {"line": 2, "hitCondition": "3"}]
    seen = debug(gateway, debugged, "launch", code=AREA, breakpoints=places)
    assert values(seen) == {"w": "2", "h": "2"}
    assert seen["log"] == ["i is 0\n", "i is 1\n", "i is 2\n"]
    moved = debug(gateway, debugged, "setBreakpoints", breakpoints=[{"line": 7}])
    assert [(one["line"], one["verified"]) for one in moved["breakpoints"]] == [(7, True)]
    assert debug(gateway, debugged, "continue")["frames"][0]["line"] == 7
    assert debug(gateway, debugged, "stepIn")["state"] == "ended"


@process_only
def test_a_cell_that_runs_is_paused(gateway: Gateway, session: str) -> None:
    code = "import time\nopen('begun', 'w').close()\nn = 0\nwhile True:\n    n += 1\n    time.sleep(0.01)"
    path = f"/v1/sessions/{session}/debug"
    answer = gateway.call("POST", path, json={"command": "launch", "code": code, "within": 0})
    assert answer.json()["state"] == "running"
    until(lambda: exists(gateway, session, "begun"))
    seen = debug(gateway, session, "pause")
    assert (seen["state"], seen["reason"]) == ("stopped", "pause")
    outermost = len(seen["frames"]) - 1
    assert debug(gateway, session, "evaluate", expression="n > 0", frameId=outermost)["value"]["value"] == "True"
    assert debug(gateway, session, "terminate")["state"] == "ended"


@process_only
@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("launch", {}),
        ("evaluate", {}),
        ("launch", {"code": "1", "breakpoints": [{"line": 2}]}),
        ("launch", {"code": "1", "breakpoints": [{"line": 0}]}),
        ("launch", {"code": "1", "exceptions": ["all"]}),
        ("dance", {}),
    ],
)
def test_bad_commands_are_refused(gateway: Gateway, session: str, command: str, fields: dict[str, Any]) -> None:
    gateway.execute(session, "1")
    assert refused(gateway, session, command, **fields) == (HTTPStatus.BAD_REQUEST, "SB002")


@process_only
def test_a_language_without_debugger_refuses(gateway: Gateway, session: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "language": "bash"})
    for command, fields in (("launch", {"code": "echo 1"}), ("stackTrace", {})):
        assert refused(gateway, session, command, **fields) == (HTTPStatus.NOT_IMPLEMENTED, "SB070")
    assert gateway.text(session, "echo 2") == "2\n"


@process_only
def test_another_tenants_session_is_not_debugged(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1 / 0")
    assert debug(gateway, session, "stackTrace")["state"] == "post_mortem"
    for method, body in (("GET", None), ("POST", {"command": "stackTrace"})):
        answer = gateway.call(method, f"/v1/sessions/{session}/debug", json=body, tenant="bob")
        assert failure(answer) == (HTTPStatus.NOT_FOUND, "SB011")


@process_only
def test_a_cell_ends_when_its_client_leaves_while_it_waits(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "before = 1")
    with closing(HTTPConnection(urlsplit(gateway.url).netloc)) as leaving:
        body = json.dumps({"command": "launch", "code": HANGS})
        key = {"Authorization": f"Bearer {KEYS['alice']}"}
        leaving.request("POST", f"/v1/sessions/{session}/debug", body, key)
        until(lambda: exists(gateway, session, "begun"))
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")
    assert gateway.text(session, "before") == "1"


HOSTILE = """
kernel = get_ipython().kernel
def forge(event, body):
    content = {"type": "event", "seq": 1, "event": event, "body": body}
    kernel.session.send(kernel.iopub_socket, "debug_event", content, kernel.get_parent("shell"))
"""


LIES = """
async def lie(stream, ident, parent):
    answer = {'success': True, 'body': {'stackFrames': [{'id': 10**400, 'name': 5}]}}
    kernel.session.send(stream, 'debug_reply', answer, parent, ident)
kernel.control_handlers['debug_request'] = lie
forge('stopped', {'threadId': 1, 'reason': 'step'})
import time; time.sleep(300)
"""


@process_only
@pytest.mark.parametrize(
    ("attack", "told"),
    [
        ("for n in range(2_000): forge('stopped', {'threadId': n, 'reason': 'x' * 1000, 'text': 5})", None),
        ("forge('stopped', {'threadId': 'a', 'reason': []}); forge([], 5)", "ended"),
        ("kernel.debugpy_stream.socket.close(0)", None),
        (LIES, "SB003"),
    ],
)
def test_code_that_forges_events_or_breaks_the_debugger_harms_nobody(
    gateway: Gateway, session: str, debugged: str, attack: str, told: str | None
) -> None:
    path, asked = f"/v1/sessions/{session}/debug", {"command": "launch", "code": HOSTILE + attack}
    found = "running"
    while found == "running":
        answer = gateway.call("POST", path, json=asked | {"within": 1})
        found, asked = answer.json().get("state") or failure(answer)[1], {"command": "wait"}
        assert len(answer.content) < 16 * 1024
    assert found in {told or found, "ended", "stopped", "SB003", "SB071"}
    assert told in {found, None}
    gateway.call("POST", path, json={"command": "terminate"})
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] in {"idle", "dead"})
    assert gateway.text(session, "6 * 7") == "42"
    seen = debug(gateway, debugged, "launch", code="x = 1\ny = 2", breakpoints=[{"line": 2}])
    assert values(seen)["x"] == "1"


#: the sixth of these prices is wrong, because one of the discounts is taken twice
PLANTED = """
def price(item, count, discount):
    total = item * count
    total -= total * discount
    if count > 10:
        total -= total * discount
    return total

def report(orders):
    return [price(*order) for order in orders]

orders = [(10, n, 0.1) for n in range(6, 13)]
result = report(orders)
"""


@pytest.mark.gate
def test_an_agent_finds_a_planted_bug_over_mcp_alone(gateway: Gateway, session: str) -> None:
    def tool(command: str, **fields: Any) -> Any:
        answer = call(gateway, "debug", session=session, command=command, **fields)
        assert not answer.get("isError"), answer
        seen = answer["structuredContent"]
        return tool("wait") if seen["state"] == "running" else seen  # on a slow machine

    call(gateway, "run_code", session=session, code=PLANTED)
    wrong = "[order for order, got in zip(orders, result) if got != order[0] * order[1] * 0.9]"
    shown = call(gateway, "run_code", session=session, code=wrong)
    assert shown["structuredContent"]["result"] == "[(10, 11, 0.1), (10, 12, 0.1)]"
    seen = tool("launch", code=PLANTED, breakpoints=[{"line": 3, "condition": "count == 11"}])
    assert (seen["state"], seen["reason"]) == ("stopped", "breakpoint")
    expected, suspects = 99.0, []
    while seen["frames"][0]["name"] == "price":
        before = seen["frames"][0]
        seen = tool("next")
        known = {one["name"]: one["value"] for one in seen["variables"]}
        if "total" in known and float(known["total"]) < expected:
            suspects.append((before["line"], before["text"]))
    assert suspects[0] == (6, "total -= total * discount")
    assert tool("evaluate", expression="len(orders)", frameId=len(seen["frames"]) - 1)["value"] == "7"
    ended = tool("terminate")
    assert ended["state"] == "ended"
    assert call(gateway, "wait", run=ended["run"])["structuredContent"]["status"] == "interrupted"
    assert call(gateway, "run_code", session=session, code="len(orders)")["structuredContent"]["result"] == "7"
