"""A client of the ragflow dialect, which sends requests and reads answers as RAGFlow's own clients do."""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import Any

from tests.gateways import Gateway


def encoded(code: str) -> str:
    """Encode code for a request."""
    return base64.b64encode(code.encode()).decode()


def run(gateway: Gateway, code: str, language: str = "python", path: str = "/run", **fields: Any) -> dict[str, Any]:
    """Run a program and return its answer. The request always succeeds, and a failed program has no stdout."""
    body = {"code_b64": encoded(code), "language": language, "arguments": {}} | fields
    response = gateway.call("POST", path, json=body)
    assert response.status_code == HTTPStatus.OK, response.text
    answer: dict[str, Any] = response.json()
    if answer["status"] != "success":
        assert not answer["stdout"]
        assert not answer.get("artifacts")
        assert answer["stderr"]
    return answer


def value(gateway: Gateway, code: str, language: str = "python", **fields: Any) -> Any:
    """Run a program and return the value of `main`."""
    answer = run(gateway, code, language, **fields)
    assert (answer["status"], answer["exit_code"]) == ("success", 0), answer
    return answer["result"]["value"]


def running(gateway: Gateway) -> list[str]:
    """Return the sessions of running programs."""
    sessions = gateway.call("GET", "/v1/sessions").json()["sessions"]
    return [session["name"] for session in sessions if session["name"].startswith("run-")]
