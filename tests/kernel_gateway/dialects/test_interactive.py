"""An interactive execute: its stream shows what the cell asks, and a call of its own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateways import Gateway


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
        ({"wait": False}, "application/x-ndjson", "interactive"),
        ({}, "application/json", "interactive"),
    ],
    ids=["without a key", "without waiting", "without a stream"],
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
