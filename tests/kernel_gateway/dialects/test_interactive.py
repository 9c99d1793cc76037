"""An execute whose client answers: its stream shows what the cell asks or calls, and a call of its own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateways import Gateway
from tests.kernel_gateway.calls import until


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the isolation makes no difference."""
    return started("process")


BODY = {"code": "print([input('a? '), input('b? ')])", "idempotency_key": "asks", "interactive": True}


def test_each_question_takes_one_answer_and_a_repeated_one_answers_no_later_question(
    gateway: Gateway, session: str
) -> None:
    path = f"/v1/sessions/{session}"
    accept = {"Accept": "application/x-ndjson"}
    statuses: list[int] = []
    with gateway.call("POST", f"{path}/execute", json=BODY, headers=accept, stream=True) as answer:
        run = answer.headers["X-Execution-Id"]

        def say(text: str, question: int) -> None:
            body = {"input": text, "question": question}
            statuses.append(gateway.call("POST", f"{path}/executions/{run}/input", json=body).status_code)

        events: list[dict[str, Any]] = []
        for event in map(json.loads, answer.iter_lines()):
            events.append(event)
            if event["type"] == "input_request":
                say("early", event["id"] + 1)
                say(event["prompt"], event["id"])
                say("again", event["id"])
    assert statuses == [400, 204, 400] * 2
    printed = "".join(event["output"]["text"] for event in events if event["type"] == "output")
    assert "['a? ', 'b? ']" in printed


@pytest.mark.parametrize(
    ("change", "accept", "field"),
    [
        ({"idempotency_key": None}, "application/x-ndjson", "interactive"),
        ({}, "application/json", "interactive"),
        ({"interactive": False, "tools": [{"name": "f"}]}, "application/json", "tools"),
        ({"interactive": False, "tools": [{"name": "f"}], "idempotency_key": None}, "text/event-stream", "tools"),
    ],
    ids=["without a key", "without a stream", "tools without a stream", "tools without a key"],
)
def test_a_cell_that_nobody_could_answer_is_refused(
    gateway: Gateway, session: str, change: dict[str, Any], accept: str, field: str
) -> None:
    answer = gateway.call("POST", f"/v1/sessions/{session}/execute", json=BODY | change, headers={"Accept": accept})
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, field)


def test_no_tenant_answers_the_cell_of_another(gateway: Gateway, session: str) -> None:
    path, accept = f"/v1/sessions/{session}", {"Accept": "application/x-ndjson"}
    with gateway.call("POST", f"{path}/execute", json=BODY, headers=accept, stream=True) as answer:
        lines = answer.iter_lines()
        asked = next(event for event in map(json.loads, lines) if event["type"] == "input_request")
        to = f"{path}/executions/{answer.headers['X-Execution-Id']}/input"
        body = {"input": "forged", "question": asked["id"]}
        assert gateway.call("POST", to, tenant="bob", json=body).status_code == 404
        assert gateway.call("POST", to, json=body | {"input": None}).status_code == 204, "control"
        rest = [json.loads(line) for line in lines]
    assert rest[-1]["status"] == "error"


CALLS = {"code": "from tools import f\nprint(f(1), f(2))", "idempotency_key": "calls", "tools": [{"name": "f"}]}


def test_each_call_of_a_tool_takes_one_answer_of_its_tenant(gateway: Gateway, session: str) -> None:
    path, accept = f"/v1/sessions/{session}", {"Accept": "application/x-ndjson"}
    cell = CALLS | {"code": "from tools import f\nprint(f(x=1), f(x=2))"}
    statuses: list[int] = []
    with gateway.call("POST", f"{path}/execute", json=cell, headers=accept, stream=True) as answer:
        to = f"{path}/executions/{answer.headers['X-Execution-Id']}/tools"
        events: list[dict[str, Any]] = []
        for event in map(json.loads, answer.iter_lines()):
            events.append(event)
            if event["type"] == "tool_call":
                body = {"tool_call": event["call"], "value": event["arguments"]["x"]}
                for tenant, said in (("bob", body), ("alice", body | {"tool_call": "1"}), ("alice", body)):
                    statuses.append(gateway.call("POST", to, tenant=tenant, json=said).status_code)
                again = gateway.call("POST", to, json=body)
                statuses.append(again.status_code)
    assert statuses == [404, 400, 204, 400] * 2
    assert again.json()["error"]["details"]["field"] == "tool_call"
    assert "1 2\n" in [event["output"]["text"] for event in events if event["type"] == "output"]
    late = gateway.call("POST", to, json={"tool_call": "x", "value": 1})
    assert late.status_code == 400


def test_a_client_that_returns_gets_the_call_again_and_the_gateway_has_noticed_that_it_left(
    gateway: Gateway, session: str
) -> None:
    path, accept = f"/v1/sessions/{session}", {"Accept": "application/x-ndjson"}
    cell = CALLS | {"code": "from tools import f\nprint(f())"}
    calls: list[str] = []
    for _ in range(2):
        with gateway.call("POST", f"{path}/execute", json=cell, headers=accept, stream=True) as answer:
            to = f"{path}/executions/{answer.headers['X-Execution-Id']}/tools"
            request = answer.headers["X-Request-Id"]
            lines = map(json.loads, answer.iter_lines())
            calls.append(next(event["call"] for event in lines if event["type"] == "tool_call"))
            if len(calls) == 2:
                assert gateway.call("POST", to, json={"tool_call": calls[0], "value": "once"}).status_code == 204
                assert [event["status"] for event in lines if event["type"] == "result"] == ["ok"]
        if len(calls) == 1:  # the request has ended, so nobody answers; its cell goes on
            _ended(gateway, request)
            described = gateway.call("GET", to.removesuffix("/tools")).json()
            assert described["status"] == "running"
    assert calls[0] == calls[1]


def _ended(gateway: Gateway, request: str) -> None:
    """Wait until the gateway has logged the end of a request."""
    until(lambda: [each for each in gateway.logged() if each.get("request_id") == request], 10)


def test_a_cell_of_a_language_without_tools_is_refused(gateway: Gateway, session: str) -> None:
    accept = {"Accept": "application/x-ndjson"}
    cell = CALLS | {"code": "echo 1", "language": "bash"}
    answer = gateway.call("POST", f"/v1/sessions/{session}/execute", json=cell, headers=accept)
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, "language")
