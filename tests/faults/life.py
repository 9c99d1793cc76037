"""A session's whole life as its client sees it, while something fails: each step is served, or refused with a code."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import requests

from tests.gateways import Gateway
from tests.kernel_gateway.calls import failure

#: the gateway cannot serve now, for a reason that it knows: the engine, a kernel, a database, a checkpoint
TROUBLE = {"SB003", "SB004", "SB009", "SB013", "SB019", "SB027", "SB041"}
#: refusals that follow from an earlier one: no such session, it exists already, no such file, no such checkpoint
FOLLOWS = {"SB011", "SB012", "SB014", "SB040"}


def step(gateway: Gateway, session: str) -> Callable[..., requests.Response]:
    """Return a function that takes a step of the session, and checks its answer."""

    def take(method: str, what: str = "", *, of: str = f"/v1/sessions/{session}", **options: Any) -> requests.Response:
        answer = gateway.call(method, f"{of}{what}", **options)
        if not answer.ok:
            status, code = failure(answer)
            assert status != HTTPStatus.INTERNAL_SERVER_ERROR, answer.text
            assert code in TROUBLE | FOLLOWS, answer.text
        elif what == "/execute":
            told = answer.json()
            assert told["error"] is None or told["error"]["code"] in TROUBLE | {"SB010"}, answer.text
        return answer

    return take


def live(gateway: Gateway, session: str) -> None:
    """Make a session, run a cell, upload, download, restart, run a cell, and end the session."""
    take = step(gateway, session)
    take("POST", of="/v1/sessions", json={"name": session})
    take("POST", "/execute", json={"code": "x = 6", "idempotency_key": "once"})
    take("PUT", "/files/a", data=b"content")
    take("GET", "/files/a")
    take("POST", "/restart")
    take("POST", "/execute", json={"code": "print(6 * 7)"})
    ended = take("DELETE")
    assert ended.status_code in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}, ended.text


def works(gateway: Gateway, session: str) -> None:
    """Check that a session lives as if nothing had failed before."""
    assert gateway.text(session, "print(6 * 7)") == "42\n"
    assert gateway.call("PUT", f"/v1/sessions/{session}/files/a", data=b"content").ok
    assert gateway.call("GET", f"/v1/sessions/{session}/files/a").content == b"content"
    assert gateway.call("DELETE", f"/v1/sessions/{session}").status_code == HTTPStatus.NO_CONTENT
    assert gateway.call("GET", "/v1/sessions").json()["sessions"] == []
