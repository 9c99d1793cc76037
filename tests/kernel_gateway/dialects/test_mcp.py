"""MCP on a real gateway, by its wire: both eras, the six tools, questions, calls that are sent again, and attacks."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema_rs import meta

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import size_of_png, until
from tests.kernel_gateway.e2b import boxed
from tests.kernel_gateway.mcp import (
    ERAS,
    LEGACY,
    MODERN,
    Wire,
    call,
    check,
    error_of,
    legacy,
    modern,
    result_of,
    send,
    streamed,
    texts,
)

TOOLS = ["run_code", "files", "session", "checkpoint", "wait", "debug"]
both_eras = pytest.mark.parametrize("era", ["modern", "legacy"])


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The shared gateway with process kernels: to a client they do not differ."""
    return started("process")


@pytest.fixture(scope="module")
def hasty() -> Iterator[Gateway]:
    """A gateway that answers after a second that a cell still runs."""
    with gateways.gateway("process", mcp_answer_after="1") as gateway:
        yield gateway


# -- the protocol ----------------------------------------------------------------------------------------------


def test_a_modern_client_finds_out_what_the_server_is(gateway: Gateway) -> None:
    told = result_of(gateway, modern("server/discover"))
    assert told["supportedVersions"] == [MODERN]
    assert told["capabilities"] == {"tools": {}}
    assert told["ttlMs"] > 0
    assert told["cacheScope"] == "public"


@pytest.mark.parametrize(
    ("asked", "served"), [("2025-06-18", "2025-06-18"), (LEGACY, LEGACY), ("2024-11-05", LEGACY), (None, LEGACY)]
)
def test_a_legacy_client_negotiates_the_version(gateway: Gateway, asked: str | None, served: str) -> None:
    wire = legacy("initialize", protocolVersion=asked, capabilities={"elicitation": {}}, clientInfo={})
    response = send(gateway, wire)
    assert response.json()["result"]["protocolVersion"] == served
    assert response.headers["Mcp-Session-Id"].startswith("asks-")
    assert result_of(gateway, legacy("ping")) == {}


@both_eras
def test_the_tools_are_six_in_one_order_with_valid_schemas(gateway: Gateway, era: str) -> None:
    tools = result_of(gateway, ERAS[era]("tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == TOOLS
    assert tools == result_of(gateway, ERAS[era]("tools/list"), tenant="bob")["tools"]
    for tool in tools:
        meta.validate(tool["inputSchema"])
        meta.validate(tool["outputSchema"])
        assert all("description" in each for each in tool["inputSchema"]["properties"].values())
        assert "anyOf" not in json.dumps(tool["inputSchema"])
    mirrored = [tool["inputSchema"]["properties"].get("session", {}).get("x-mcp-header") for tool in tools]
    assert mirrored == ["Session"] * 4 + [None, "Session"]
    assert tools[0]["inputSchema"]["required"] == ["code"]
    assert [tool["annotations"]["readOnlyHint"] for tool in tools] == [False] * 4 + [True, False]


def _without(header: str) -> Wire:
    wire = modern("tools/call", name="session", arguments={"session": "demo", "action": "status"})
    return Wire({name: value for name, value in wire.headers.items() if name != header}, wire.body)


def _with(header: str, value: str) -> Wire:
    return Wire(_without(header).headers | {header: value}, _without(header).body)


NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]
#: a refused request, and its HTTP status and code
REFUSED = {
    "no version header": (_without("MCP-Protocol-Version"), 400, -32020),
    "another method": (_with("Mcp-Method", "tools/list"), 400, -32020),
    "no name": (_without("Mcp-Name"), 400, -32020),
    "no mirrored argument": (_without("Mcp-Param-Session"), 400, -32020),
    "another mirrored argument": (_with("Mcp-Param-Session", "other"), 400, -32020),
    "bad base64": (_with("Mcp-Param-Session", "=?base64?ZGVtbw?="), 400, -32020),
    "no stream accepted": (_with("Accept", "application/json"), 406, -32600),
    "unknown version": (
        modern("tools/list", meta={"io.modelcontextprotocol/protocolVersion": "2099-01-01"}),
        400,
        -32020,
    ),
    "no capabilities": (modern("tools/list", meta={"io.modelcontextprotocol/clientCapabilities": None}), 400, -32602),
    "unknown tool": (modern("tools/call", name="rm", arguments={}), 400, -32602),
    "deep arguments": (modern("tools/call", name="run_code", arguments={"code": NESTED}), 400, -32602),
    "unknown method": (modern("resources/list"), 404, -32601),
    "initialize in the modern era": (modern("initialize"), 404, -32601),
    "ping in the modern era": (modern("ping"), 404, -32601),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_modern_request_is_refused_by_its_code(gateway: Gateway, name: str) -> None:
    wire, status, code = REFUSED[name]
    assert error_of(send(gateway, wire)) == (status, code)


def test_a_version_that_is_not_served_is_named(gateway: Gateway) -> None:
    wire = modern("tools/list", meta={"io.modelcontextprotocol/protocolVersion": "2099-01-01"})
    wire.headers["MCP-Protocol-Version"] = "2099-01-01"
    response = send(gateway, wire)
    assert error_of(response) == (400, -32022)
    assert response.json()["error"]["data"] == {"supported": [MODERN], "requested": "2099-01-01"}


def test_a_mirrored_argument_may_be_base64(gateway: Gateway) -> None:
    encoded = base64.b64encode(b"demo").decode()
    result = result_of(gateway, _with("Mcp-Param-Session", f"=?base64?{encoded}?="))
    assert result["structuredContent"]["error"]["code"] == "SB011"


NO_MESSAGES = [
    b"{",
    b"1",
    b"[]",
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
    b'{"id":1}',
    b'{"jsonrpc":"2.0","id":"%s","method":"ping"}' % (b"a" * 300),
]


@pytest.mark.parametrize("body", NO_MESSAGES)
def test_what_is_no_message_is_refused(gateway: Gateway, body: bytes) -> None:
    response = gateway.call("POST", "/mcp", data=body)
    status, code = error_of(response)
    assert status == 400
    assert code in {-32700, -32600}


def test_notifications_and_responses_have_no_answer_and_other_methods_are_refused(gateway: Gateway) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    response = gateway.call("POST", "/mcp", json=told, headers={"MCP-Protocol-Version": LEGACY})
    assert (response.status_code, response.content) == (202, b"")
    response = gateway.call("POST", "/mcp", json={"jsonrpc": "2.0", "id": "x", "result": {}})
    assert (response.status_code, response.content) == (202, b"")
    assert gateway.call("GET", "/mcp").status_code == 405
    assert gateway.call("DELETE", "/mcp").status_code == 405


def test_only_the_oldest_version_has_batches_and_small_ones(gateway: Gateway) -> None:
    batch = [legacy("ping").body, {"jsonrpc": "2.0", "method": "notifications/initialized"}, legacy("nope").body]
    answers = gateway.call("POST", "/mcp", json=batch).json()
    assert [answer.get("result", answer.get("error", {}).get("code")) for answer in answers] == [{}, -32601]
    newer = gateway.call("POST", "/mcp", json=batch, headers={"MCP-Protocol-Version": LEGACY})
    assert error_of(newer) == (400, -32600)
    huge = gateway.call("POST", "/mcp", data=json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 60_000))
    assert error_of(huge)[0] == 400


# -- who may call ----------------------------------------------------------------------------------------------


def test_only_a_key_opens_it_also_in_the_query(gateway: Gateway) -> None:
    assert error_of(send(gateway, modern("tools/list"), tenant=None)) == (401, 20)
    wire = legacy("tools/list")
    response = gateway.call("POST", f"/mcp?token={KEYS['alice']}", tenant=None, json=wire.body, headers=wire.headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Origin": "same"}, 200),
    ],
)
def test_foreign_pages_and_host_names_are_refused(gateway: Gateway, headers: dict[str, str], status: int) -> None:
    wire = modern("tools/list")
    headers = {name: gateway.url if value == "same" else value for name, value in headers.items()}
    assert send(gateway, Wire(wire.headers | headers, wire.body)).status_code == status


def test_a_body_that_is_too_large_is_refused(gateway: Gateway) -> None:
    response = gateway.call("POST", "/mcp", data=b" " * (4 * 1024**2 + 1))
    assert error_of(response) == (413, 24)


# -- run_code --------------------------------------------------------------------------------------------------


@both_eras
def test_a_session_is_made_and_named_first_and_keeps_its_state(gateway: Gateway, era: str) -> None:
    first = call(gateway, "run_code", era=era, code="x = 40")
    name = first["structuredContent"]["session"]
    assert texts(first) == [f"[session {name}: state new, status ok]"]
    second = call(gateway, "run_code", era=era, code="print('hi'); x + 2", session=name)
    told = second["structuredContent"]
    assert texts(second) == [f"[session {name}: state preserved, status ok]", "hi\n42\n"]
    assert (told["text"], told["result"], told["status"], told["truncated"]) == ("hi\n42\n", "42", "ok", False)
    ended = call(gateway, "session", era=era, session=name, action="end")
    assert ended["structuredContent"]["state"] == "ended"
    again = call(gateway, "run_code", era=era, code="x", session=name)
    assert "NameError" in texts(again)[1]
    call(gateway, "session", session=name, action="end")


@both_eras
def test_a_failed_cell_and_a_dead_kernel_are_errors_that_say_what_became_of_the_state(
    gateway: Gateway, session: str, era: str
) -> None:
    failed = call(gateway, "run_code", era=era, session=session, code="1 / 0")
    assert failed["isError"]
    assert failed["structuredContent"]["error"] == {"name": "ZeroDivisionError", "message": "division by zero"}
    died = call(gateway, "run_code", era=era, session=session, code="import os; os._exit(3)")
    told = died["structuredContent"]
    assert (died["isError"], told["status"], told["state"], told["error"]["code"]) == (True, "died", "lost", "SB010")
    after = call(gateway, "run_code", era=era, session=session, code="1")
    assert after["structuredContent"]["state"] == "lost"
    assert "state lost (" in texts(after)[0]


def test_a_picture_comes_after_the_text(gateway: Gateway, session: str) -> None:
    code = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    result = call(gateway, "run_code", session=session, code=code)
    assert [block["type"] for block in result["content"]][-1] == "image"
    picture = result["content"][-1]
    assert picture["mimeType"] == "image/png"
    assert min(size_of_png(picture["data"])) > 100


def test_long_output_is_cut_and_the_whole_is_in_a_file(gateway: Gateway, session: str) -> None:
    result = call(gateway, "run_code", session=session, code="print('a' * 40_000); print('b' * 40_000)")
    told = result["structuredContent"]
    assert told["truncated"]
    assert len(json.dumps(result)) < 1024**2
    assert told["files"][0] in texts(result)[0]
    size = call(gateway, "files", session=session, action="read", path=told["files"][0], limit=10)["structuredContent"]
    assert (size["size"], size["content"]) == (80_002, "a" * 10)
    end = call(gateway, "files", session=session, action="read", path=told["files"][0], offset=80_000)
    assert end["structuredContent"]["content"] == "b\n"


def test_the_file_with_the_whole_output_has_what_people_read_of_each_display(gateway: Gateway, session: str) -> None:
    code = "from IPython.display import Markdown, display\nprint('a' * 40_000)\ndisplay(Markdown('*3*'))"
    told = call(gateway, "run_code", session=session, code=code)["structuredContent"]
    end = call(gateway, "files", session=session, action="read", path=told["files"][0], offset=40_000)
    assert end["structuredContent"]["content"] == "\n*3*\n"


def test_a_language_is_that_of_the_session(gateway: Gateway, session: str) -> None:
    assert call(gateway, "run_code", session=session, code="echo hi", language="bash")["structuredContent"]["text"] == (
        "hi\n"
    )
    other = call(gateway, "run_code", session=session, code="1", language="python")
    assert (other["isError"], other["structuredContent"]["error"]["code"]) == (True, "SB002")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"code": 1}, {"code": "1", "more": 1}, {"code": "1", "session": "a/b"}, {"code": "1", "timeout": 0}],
)
def test_bad_arguments_are_a_result_that_says_so(gateway: Gateway, arguments: dict[str, Any]) -> None:
    result = call(gateway, "run_code", **arguments)
    assert result["isError"]
    assert result["structuredContent"]["error"]["code"] == "SB002"


# -- calls that take long, or are sent again -------------------------------------------------------------------


@both_eras
def test_a_long_cell_answers_with_a_run_that_wait_continues(hasty: Gateway, era: str) -> None:
    first = call(hasty, "run_code", era=era, code="import time; time.sleep(2.5); 'done'")
    told = first["structuredContent"]
    assert (told["status"], first.get("isError")) == ("running", None)
    assert told["run"] in texts(first)[0]
    waits = 0
    while told["status"] == "running":
        told = call(hasty, "wait", era=era, run=told["run"])["structuredContent"]
        waits += 1
    assert (told["status"], told["result"], told["state"]) == ("ok", "'done'", "new")
    assert waits > 1
    assert call(hasty, "wait", era=era, run=told["run"])["structuredContent"]["result"] == "'done'"


def test_progress_is_told_if_the_client_wants_it(gateway: Gateway, session: str) -> None:
    def told_to(era: str) -> list[dict[str, Any]]:
        arguments = {"session": f"{session}-{era}", "code": "import time; time.sleep(11); 'done'"}
        wire = ERAS[era]("tools/call", name="run_code", arguments=arguments, meta={"progressToken": "p"})
        with streamed(gateway, wire) as messages:
            return list(messages)

    with ThreadPoolExecutor() as clients:  # at once, because each takes so long
        both = list(clients.map(told_to, ERAS))
    for *told, last in both:
        assert {each["method"] for each in told} == {"notifications/progress"}
        progress = [each["params"]["progress"] for each in told]
        assert progress == sorted(set(progress))
        assert len(progress) == 2
        assert last["result"]["structuredContent"]["result"] == "'done'"
    for era in ERAS:
        call(gateway, "session", session=f"{session}-{era}", action="end")


def _opened(gateway: Gateway, wire: Wire) -> HTTPConnection:
    """Send a request, and do not wait for the answer."""
    address = urlsplit(gateway.url)
    connection = HTTPConnection(address.hostname or "", address.port)
    headers = wire.headers | {"Authorization": f"Bearer {KEYS['alice']}", "Content-Type": "application/json"}
    connection.request("POST", "/mcp", json.dumps(wire.body), headers)
    return connection


def _cut(gateway: Gateway, wire: Wire, begun: Callable[[], object]) -> None:
    """Send a request, and close the connection when the cell runs."""
    with closing(_opened(gateway, wire)):
        until(begun)


@both_eras
def test_a_call_that_is_sent_again_after_a_cut_joins_the_running_cell(gateway: Gateway, session: str, era: str) -> None:
    call(gateway, "run_code", session=session, code="n = 0")
    code = "n += 1\nopen('ran', 'a').write('x')\nimport time; time.sleep(2)\nn"

    def ran() -> str:
        read = call(gateway, "files", session=session, action="read", path="ran")
        return str(read["structuredContent"].get("content", ""))

    wire = ERAS[era]("tools/call", name="run_code", arguments={"session": session, "code": code})
    _cut(gateway, wire, ran)
    result = call(gateway, "run_code", era=era, session=session, code=code)
    assert (result["structuredContent"]["result"], ran()) == ("1", "x")
    later = call(gateway, "run_code", era=era, session=session, code=code)  # positive control: it is a new call now
    assert (later["structuredContent"]["result"], ran()) == ("2", "xx")


def _results(gateway: Gateway, *wires: Wire) -> list[str]:
    """Send calls at the same time, and return the results of their cells."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(_opened(gateway, wire))) for wire in wires]
        told = [json.loads(connection.getresponse().read())["result"] for connection in connections]
    return [each["structuredContent"]["result"] for each in told]


#: takes so long that a second call comes meanwhile
COUNTS = "n += 1\nimport time; time.sleep(1)\nn"


@both_eras
def test_the_same_call_of_two_clients_at_the_same_time_is_two_runs(gateway: Gateway, session: str, era: str) -> None:
    call(gateway, "run_code", session=session, code="n = 0")
    one = ERAS[era]("tools/call", name="run_code", arguments={"session": session, "code": COUNTS})
    other = Wire(one.headers | {"Mcp-Session-Id": "2"}, one.body)  # both clients count their requests from 1
    assert sorted(_results(gateway, one, other)) == ["1", "2"]


def test_a_request_of_a_legacy_client_that_comes_twice_runs_once(gateway: Gateway, session: str) -> None:
    call(gateway, "run_code", session=session, code="n = 0")
    one = legacy("tools/call", name="run_code", arguments={"session": session, "code": COUNTS})
    assert _results(gateway, one, one) == ["1", "1"]
    other = legacy("tools/call", name="run_code", arguments={"session": session, "code": COUNTS})
    assert _results(gateway, other) == ["2"]  # positive control: it is another request


@both_eras
def test_the_result_of_a_cut_call_waits_for_its_client(gateway: Gateway, session: str, era: str) -> None:
    call(gateway, "run_code", session=session, code="n = 0")
    code = "n += 1\nopen('ran', 'w').close()\nimport time; time.sleep(0.5)\nn"
    wire = ERAS[era]("tools/call", name="run_code", arguments={"session": session, "code": code})

    def busy() -> bool:
        return bool(call(gateway, "session", session=session, action="status")["structuredContent"]["busy"])

    _cut(gateway, wire, busy)
    until(lambda: not busy())
    assert call(gateway, "run_code", era=era, session=session, code=code)["structuredContent"]["result"] == "1"


def test_a_cut_call_without_a_session_finds_its_session_again(gateway: Gateway) -> None:
    code = "import time; time.sleep(1.5); 'once'"
    before = gateway.call("GET", "/v1/sessions").json()["sessions"]

    def made() -> list[str]:
        now = gateway.call("GET", "/v1/sessions").json()["sessions"]
        known = {each["name"] for each in before}
        return [each["name"] for each in now if each["name"] not in known and each["state"] == "busy"]

    _cut(gateway, modern("tools/call", name="run_code", arguments={"code": code}), made)
    name = made()[0]
    result = call(gateway, "run_code", code=code)
    assert (result["structuredContent"]["session"], result["structuredContent"]["state"]) == (name, "new")
    other = call(gateway, "run_code", code=code)  # positive control: a later call gets a session of its own
    assert other["structuredContent"]["session"] != name


def test_a_key_runs_a_call_once_also_without_a_session(gateway: Gateway) -> None:
    first = call(gateway, "run_code", code="import random; random.random()", idempotency_key="once")
    again = call(gateway, "run_code", code="import random; random.random()", idempotency_key="once")
    assert first["structuredContent"]["result"] == again["structuredContent"]["result"]
    other = call(gateway, "run_code", code="2", idempotency_key="once")
    assert other["structuredContent"]["error"]["code"] == "SB002"
    call(gateway, "session", session=first["structuredContent"]["session"], action="end")


def test_a_legacy_client_cancels_its_own_call(gateway: Gateway, session: str) -> None:
    code = "open('begun', 'w').close()\nimport time; time.sleep(25)"
    wire = legacy("tools/call", name="run_code", arguments={"session": session, "code": code})
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": wire.body["id"]}}
    with closing(_opened(gateway, wire)) as connection:

        def busy() -> bool:
            told = call(gateway, "session", session=session, action="status")["structuredContent"]
            return bool(told.get("busy"))

        until(busy)
        assert gateway.call("POST", "/mcp", tenant="bob", json=cancel, headers=wire.headers).status_code == 202
        assert busy()  # another tenant's cancellation has no effect
        assert gateway.call("POST", "/mcp", json=cancel, headers=wire.headers).status_code == 202
        told = json.loads(connection.getresponse().read())
    assert told["result"]["structuredContent"]["status"] == "interrupted"


@pytest.mark.full
def test_a_cell_ends_when_its_modern_client_leaves_and_does_not_come_back(gateway: Gateway, session: str) -> None:
    def busy(name: str) -> bool:
        told = call(gateway, "session", session=name, action="status")["structuredContent"]
        return bool(told.get("busy"))

    arguments = {"code": "import time; time.sleep(100)", "timeout": 120}
    kept = f"{session}-kept"
    _cut(
        gateway,
        modern("tools/call", name="run_code", arguments=arguments | {"session": session}),
        lambda: busy(session),
    )
    _cut(
        gateway,
        modern("tools/call", name="run_code", arguments=arguments | {"session": kept, "idempotency_key": "k"}),
        lambda: busy(kept),
    )
    until(lambda: not busy(session))
    assert busy(kept)  # positive control: its client has asked for it to go on
    call(gateway, "session", session=kept, action="end")


# -- input() ---------------------------------------------------------------------------------------------------

ASKS: dict[str, Any] = {"code": "print('hello', input('Name? '))"}
GIVEN = {"answer": {"action": "accept", "content": {"answer": "Ada"}}}


def _asked(gateway: Gateway, session: str) -> dict[str, Any]:
    asked = call(gateway, "run_code", asks=True, session=session, **ASKS)
    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"]["answer"]["params"]["message"] == "Name?"
    return asked


def _answer(session: str, state: str, tool: str = "run_code", **more: Any) -> Wire:
    arguments = {"session": session, **ASKS} | more.pop("arguments", {})
    given = {"inputResponses": GIVEN, "requestState": state} | more
    return modern("tools/call", asks=True, name=tool, arguments=arguments, **given)


def test_a_modern_client_answers_input_by_sending_the_call_again(gateway: Gateway, session: str) -> None:
    state = _asked(gateway, session)["requestState"]
    result = result_of(gateway, _answer(session, state))
    assert result["structuredContent"]["text"] == "hello Ada\n"
    # sent again after a lost answer: the run is the same, and the answer is given once
    again = result_of(gateway, _answer(session, state))
    assert again["structuredContent"]["run"] == result["structuredContent"]["run"]
    assert again["structuredContent"]["text"] == "hello Ada\n"


@pytest.mark.parametrize(
    ("given", "text"),
    [({"answer": {"action": "decline"}}, "EOFError"), ({"answer": {"action": "cancel"}}, "EOFError")],
)
def test_an_answer_that_is_refused_is_the_end_of_the_input(
    gateway: Gateway, session: str, given: dict[str, Any], text: str
) -> None:
    state = _asked(gateway, session)["requestState"]
    assert text in result_of(gateway, _answer(session, state, inputResponses=given))["structuredContent"]["text"]


def test_an_answer_that_is_missing_is_asked_for_again(gateway: Gateway, session: str) -> None:
    state = _asked(gateway, session)["requestState"]
    again = result_of(gateway, _answer(session, state, inputResponses={"other": GIVEN["answer"]}))
    assert again["resultType"] == "input_required"
    result = result_of(gateway, _answer(session, again["requestState"]))
    assert result["structuredContent"]["text"] == "hello Ada\n"


def test_a_request_state_holds_for_its_tenant_and_its_call_only(gateway: Gateway, session: str) -> None:
    state = _asked(gateway, session)["requestState"]
    forged = [
        _answer(session, state[:-1] + ("0" if state[-1] != "0" else "1")),
        _answer(session, state.replace("~", "~0", 1)),
        _answer(session, "x"),
        _answer(session, state, arguments={"code": "other"}),
    ]
    for wire in forged:
        assert error_of(send(gateway, wire)) == (400, -32602)
    assert error_of(send(gateway, _answer(session, state), tenant="bob")) == (400, -32602)
    result = result_of(gateway, _answer(session, state))  # positive control
    assert result["structuredContent"]["text"] == "hello Ada\n"


def test_a_legacy_client_answers_input_on_another_request(gateway: Gateway, session: str) -> None:
    wire = legacy("tools/call", asks=True, name="run_code", arguments={"session": session, **ASKS})
    with streamed(gateway, wire) as messages:
        asked = next(messages)
        assert asked["method"] == "elicitation/create"
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"answer": "Eve"}}}
        assert gateway.call("POST", "/mcp", tenant="bob", json=reply, headers=wire.headers).status_code == 202
        reply["result"] = GIVEN["answer"]
        assert gateway.call("POST", "/mcp", json=reply, headers=wire.headers).status_code == 202
        result = next(messages)["result"]
    check(gateway, "run_code", result)
    assert result["structuredContent"]["text"] == "hello Ada\n"


@both_eras
def test_a_client_that_cannot_ask_is_told_what_to_do(gateway: Gateway, session: str, era: str) -> None:
    told = call(gateway, "run_code", era=era, session=session, **ASKS)
    assert "EOFError" in texts(told)[1]
    assert "'Name? '" in texts(told)[0]
    assert "stdin" in texts(told)[0]
    given = call(gateway, "run_code", era=era, session=session, stdin="Ada\n", **ASKS)
    assert given["structuredContent"]["text"] == "hello Ada\n"


def test_nobody_is_asked_for_a_password(gateway: Gateway, session: str) -> None:
    code = "import getpass; getpass.getpass('PIN ')"
    told = call(gateway, "run_code", asks=True, session=session, code=code)
    assert "PIN" in texts(told)[0]
    assert told["isError"]


# -- the other tools -------------------------------------------------------------------------------------------


@both_eras
def test_files_are_written_listed_read_in_parts_and_deleted(gateway: Gateway, session: str, era: str) -> None:
    def files(action: str, **more: Any) -> dict[str, Any]:
        return call(gateway, "files", era=era, session=session, action=action, **more)

    assert files("write", path="a/ü.txt", content="grün")["structuredContent"]["size"] == 5
    assert [each["name"] for each in files("list", path="a")["structuredContent"]["entries"]] == ["ü.txt"]
    part = files("read", path="a/ü.txt", limit=3)["structuredContent"]
    assert part == {"content": "gr", "size": 5, "truncated": True}  # no half of a character
    assert files("read", path="a/ü.txt", offset=2)["structuredContent"]["content"] == "ün"
    assert call(gateway, "run_code", era=era, session=session, code="open('a/ü.txt').read()")["structuredContent"][
        "result"
    ] == ("'grün'")
    binary = base64.b64encode(bytes(range(256))).decode()
    files("write", path="b", content=binary, encoding="base64")
    assert files("read", path="b")["structuredContent"]["error"]["code"] == "SB002"
    assert files("read", path="b", encoding="base64")["structuredContent"]["content"] == binary
    assert not files("delete", path="b").get("isError")
    assert files("read", path="b")["structuredContent"]["error"]["code"] == "SB014"
    assert files("read", path="../x")["structuredContent"]["error"]["code"] == "SB002"
    assert files("write", path="c")["structuredContent"]["error"]["code"] == "SB002"


@both_eras
def test_a_session_is_described_interrupted_restarted_and_ended(gateway: Gateway, session: str, era: str) -> None:
    def control(action: str) -> dict[str, Any]:
        told: dict[str, Any] = call(gateway, "session", era=era, session=session, action=action)["structuredContent"]
        return told

    call(gateway, "run_code", era=era, session=session, code="x = 1")
    told = control("status")
    idle = {"session": session, "state": "idle", "busy": False, "language": "python"}
    assert {name: told[name] for name in idle} == idle
    arguments = {"session": session, "code": "import time; time.sleep(100)", "timeout": 120}
    with closing(_opened(gateway, ERAS[era]("tools/call", name="run_code", arguments=arguments))) as connection:
        until(lambda: control("status")["busy"])
        assert control("interrupt")["session"] == session
        told = json.loads(connection.getresponse().read())["result"]["structuredContent"]
    assert told["status"] == "interrupted"
    assert control("restart")["state"] == "idle"
    after = call(gateway, "run_code", era=era, session=session, code="'x' in globals()")["structuredContent"]
    assert (after["state"], after["result"]) == ("restarted", "False")
    assert control("end")["state"] == "ended"
    assert control("status")["error"]["code"] == "SB011"


SETUP = """
import pandas as pd
df = pd.DataFrame({"city": ["Oslo", "Rome"]})
more = {f"v{n:03}": n for n in range(99)}
globals().update(more)
wide = {f"{n} " + "x" * 300: "y" * 300 for n in range(100)}
"""


@both_eras
def test_a_status_lists_variables_and_shows_one_also_while_a_cell_runs(
    gateway: Gateway, session: str, era: str
) -> None:
    def status(**more: Any) -> dict[str, Any]:
        return call(gateway, "session", era=era, session=session, action="status", **more)

    call(gateway, "run_code", era=era, session=session, code=SETUP)
    arguments = {"session": session, "code": "import time; time.sleep(100)", "timeout": 120}
    with closing(_opened(gateway, ERAS[era]("tools/call", name="run_code", arguments=arguments))):
        until(lambda: status()["structuredContent"]["busy"])
        listed = status()
        told = listed["structuredContent"]
        assert (told["variables_total"], len(told["variables"]), told["truncated"]) == (104, 100, True)
        assert told["variables"][0]["shape"] == [2, 1]
        assert texts(listed)[1].startswith("df: pandas.DataFrame [2, 1] = 2 rows")
        shown = status(variable="df")["structuredContent"]
        assert (shown["variable"]["rows"], shown["truncated"]) == ([["Oslo"], ["Rome"]], False)
        assert status(variable="missing")["structuredContent"]["error"]["code"] == "SB066"
        call(gateway, "session", era=era, session=session, action="interrupt")


def test_a_variable_is_shown_by_a_status_alone(gateway: Gateway, session: str) -> None:
    call(gateway, "run_code", session=session, code="x = 1")
    refused = call(gateway, "session", session=session, action="restart", variable="x")
    assert refused["structuredContent"]["error"]["code"] == "SB002"
    assert call(gateway, "run_code", session=session, code="x")["structuredContent"]["result"] == "1"


#: a kernel that describes too much
LIES = """
long = {"name": "n" * 200, "type": "t", "preview": "x" * 10_000}
wide = {"columns": [{"name": "c" * 200, "type": "t"}] * 50, "rows": [["r" * 200] * 50] * 50, "entries": [long] * 50}
kernel = get_ipython().kernel
async def lie(stream, ident, parent):
    told = {"variable": long | wide} if "name" in parent["content"] else {"variables": [long] * 101, "total": 101}
    kernel.session.send(stream, "variables_reply", told, parent, ident)
kernel.control_handlers["variables_request"] = lie
"""


def test_what_a_kernel_says_of_its_variables_is_cut_to_what_clients_read(gateway: Gateway, session: str) -> None:
    call(gateway, "run_code", session=session, code=LIES)
    listed = call(gateway, "session", session=session, action="status")
    shown = call(gateway, "session", session=session, action="status", variable="long")
    for each in (listed, shown):
        assert each["structuredContent"]["truncated"]
        assert len(json.dumps(each)) < 300_000


def test_a_status_starts_no_kernel_and_knows_no_variables_of_a_language_without_them(
    gateway: Gateway, session: str
) -> None:
    call(gateway, "run_code", session=session, code="import os; os._exit(1)")
    dead = call(gateway, "session", session=session, action="status")["structuredContent"]
    assert (dead["state"], "variables" in dead) == ("dead", False)
    bash = call(gateway, "run_code", language="bash", code="x=1")["structuredContent"]["session"]
    assert "variables" not in call(gateway, "session", session=bash, action="status")["structuredContent"]
    refused = call(gateway, "session", session=bash, action="status", variable="x")
    assert refused["structuredContent"]["error"]["code"] == "SB002"
    call(gateway, "session", session=bash, action="end")


def test_a_gateway_without_checkpoints_says_so(gateway: Gateway, session: str) -> None:
    call(gateway, "run_code", session=session, code="x = 1")
    saved = call(gateway, "checkpoint", session=session, action="save")
    assert (saved["isError"], saved["structuredContent"]["error"]["code"]) == (True, "SB041")
    assert call(gateway, "checkpoint", session=session, action="list")["structuredContent"] == {"checkpoints": []}
    assert call(gateway, "checkpoint", session=session, action="rollback")["structuredContent"]["error"]["code"] == (
        "SB040"
    )


def test_a_session_of_a_sandbox_is_branched_as_over_the_api(gateway: Gateway) -> None:
    def names() -> set[str]:
        return {one["name"] for one in gateway.call("GET", "/v1/sessions").json()["sessions"]}

    with boxed(gateway) as box:
        before = names()
        box.run("1")
        [name] = names() - before
        told = call(gateway, "checkpoint", session=name, action="branch")["structuredContent"]["error"]
        native = gateway.call("POST", f"/v1/sessions/{name}/branch", json={"as": "branch"}).json()["error"]
        assert (told["code"], told["message"]) == (native["code"], native["message"])


def test_another_tenants_sessions_and_runs_are_out_of_reach(gateway: Gateway, session: str) -> None:
    run = call(gateway, "run_code", session=session, code="'secret'")["structuredContent"]["run"]
    assert call(gateway, "wait", run=run)["structuredContent"]["result"] == "'secret'"  # positive control
    foreign = call(gateway, "wait", tenant="bob", run=run)
    assert foreign["structuredContent"]["error"]["code"] == "SB011"
    status = call(gateway, "session", tenant="bob", session=session, action="status")
    assert status["structuredContent"]["error"]["code"] == "SB011"
    for bad in ("x", f"{session}:{'0' * 32}", "a:b:c"):
        assert call(gateway, "wait", run=bad)["isError"]


# -- the old transport -----------------------------------------------------------------------------------------


def test_vllms_tool_server_runs_python_in_a_session_of_the_stream(gateway: Gateway) -> None:
    with gateway.call("GET", "/sse", tenant=None, auth=("any", KEYS["alice"]), stream=True) as stream:
        lines = (line.decode() for line in stream.iter_lines() if line)
        assert next(lines) == "event: endpoint"
        path = "/" + next(lines).removeprefix("data: ")
        assert path.startswith("/messages/?session_id=")

        def ask(method: str, **params: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            sent = gateway.call("POST", path, json=body)
            assert (sent.status_code, sent.text) == (202, "Accepted")
            assert next(lines) == "event: message"
            told = json.loads(next(lines).removeprefix("data: "))
            assert told["id"] == method
            result: dict[str, Any] = told["result"]
            return result

        assert ask("initialize", protocolVersion="2024-11-05")["serverInfo"]["name"] == "python"
        assert [tool["name"] for tool in ask("tools/list")["tools"]] == ["python"]
        ask("tools/call", name="python", arguments={"code": "x = 41"})
        told = ask("tools/call", name="python", arguments={"code": "x + 1"})
        assert told["content"][0]["text"] == "42\n"
        foreign = gateway.call("POST", path, tenant="bob", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert foreign.status_code == 404
        sessions = {each["name"] for each in gateway.call("GET", "/v1/sessions").json()["sessions"]}
    until(lambda: gateway.call("POST", path, json={}).status_code == 404)
    # the stream's session has ended with it
    until(lambda: sessions - {each["name"] for each in gateway.call("GET", "/v1/sessions").json()["sessions"]})
    assert gateway.call("POST", "/messages/", json={}).status_code == 400
