"""What a client of any dialect is told: where its code starts, when its session was made, and whom `input()` asks."""

from __future__ import annotations

import secrets
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import requests

from tests.gateways import Gateway
from tests.kernel_gateway import agentrun, e2b
from tests.kernel_gateway.calls import process_only

pytestmark = process_only

CWD = "import os; print(os.getcwd())"
#: runs a cell, and returns what it prints, or the message of its error
Runs = Callable[[str], str]


def _native(gateway: Gateway, stack: ExitStack, cwd: str) -> requests.Response | Runs:
    name = f"test-{secrets.token_hex(4)}"
    made = gateway.call("POST", "/v1/sessions", json={"name": name, "cwd": cwd})
    stack.callback(gateway.call, "DELETE", f"/v1/sessions/{name}")
    return made if made.status_code != 201 else lambda code: _said(gateway, name, code)


def _jupyter(gateway: Gateway, stack: ExitStack, cwd: str) -> requests.Response | Runs:
    made = gateway.call("POST", "/api/kernels", json={"cwd": cwd})
    if made.status_code != 201:
        return made
    kernel = made.json()["id"]
    stack.callback(gateway.call, "DELETE", f"/api/kernels/{kernel}")
    return lambda code: _said(gateway, kernel, code)


def _said(gateway: Gateway, session: str, code: str) -> str:
    [output] = gateway.execute(session, code)["outputs"]
    return str(output.get("text") or output["evalue"])


def _agentrun(gateway: Gateway, stack: ExitStack, cwd: str) -> requests.Response | Runs:
    box = stack.enter_context(agentrun.boxed(gateway))
    made = box.call("POST", "/contexts", json={"cwd": cwd})
    if made.status_code != 200:
        return made

    def run(code: str) -> str:
        reply = box.run(code, contextId=made.json()["id"])
        return str(reply["stdout"] or reply["results"])

    return run


def _e2b(gateway: Gateway, stack: ExitStack, cwd: str) -> requests.Response | Runs:
    box = stack.enter_context(e2b.boxed(gateway))
    made = box.call("POST", "/contexts", json={"cwd": cwd})
    if made.status_code != 200:
        return made

    def run(code: str) -> str:
        event = box.run(code, context_id=made.json()["id"])[-1]
        return str(event.get("text") or event["value"])

    return run


@contextmanager
def started(make: Any, gateway: Gateway, cwd: str) -> Iterator[requests.Response | Runs]:
    """Make a session that starts in a directory; yield what runs its cells, or the refusal. It is ended afterwards."""
    with ExitStack() as stack:
        yield make(gateway, stack, cwd)


DIALECTS = pytest.mark.parametrize("make", [_native, _jupyter, _agentrun, _e2b])


@DIALECTS
@pytest.mark.parametrize("cwd", ["here/below", "/home/user/here", "/tmp/test-of-directories"])
def test_a_session_starts_in_the_directory_that_its_client_names(gateway: Gateway, make: Any, cwd: str) -> None:
    with started(make, gateway, cwd) as session:
        assert callable(session), session.text
        assert session(CWD).strip().endswith(f"/{cwd.removeprefix('/home/user/').lstrip('/')}")


# Contexts of sandboxes may start anywhere, as clients of E2B and AgentRun expect.
@pytest.mark.parametrize("make", [_native, _jupyter])
@pytest.mark.parametrize("cwd", ["/etc", "/home", "/home/userx", "../here"])
def test_a_session_that_cannot_start_there_is_refused(gateway: Gateway, make: Any, cwd: str) -> None:
    with started(make, gateway, cwd) as refused:
        assert isinstance(refused, requests.Response)
        assert refused.status_code == 400, refused.text
        assert "path leads out of the workspace" in refused.text or "path is neither in /home/user nor" in refused.text


def test_a_command_may_start_anywhere_in_its_sandbox(gateway: Gateway) -> None:
    with agentrun.boxed(gateway) as box, e2b.boxed(gateway) as other:
        assert box.command("pwd", cwd="/etc")["stdout"] == "/etc\n"
        asked = e2b.envelope({"process": {"cmd": "/bin/pwd", "cwd": "/etc"}})
        answer = other.call("POST", "/process.Process/Start", e2b.ENVD, data=asked, headers=e2b.STREAM)
        said = [message["event"] for _, message in e2b.messages(iter([answer.content])) if "event" in message]
        assert [b64decode(event["data"]["stdout"]) for event in said if "data" in event] == [b"/etc\n"]


@DIALECTS
def test_input_that_nobody_answers_says_what_to_send(gateway: Gateway, make: Any) -> None:
    with started(make, gateway, "") as session:
        assert callable(session), session.text
        assert "send the answers with the cell (`stdin`" in session("input()")


def test_the_time_of_creation_outlives_restarts_in_every_dialect_that_tells_it(gateway: Gateway, session: str) -> None:
    with agentrun.boxed(gateway) as box, e2b.boxed(gateway) as other:

        def told() -> list[str]:
            mine = gateway.call("GET", f"/v1/sessions/{session}").json()
            listed = gateway.call("GET", "/v1/sessions").json()["sessions"]
            [ours] = [each["created_at"] for each in listed if each["name"] == session]
            theirs = agentrun.data(gateway.call("GET", f"/sandboxes/{box.id}"))
            others = e2b.control(gateway, "GET", f"/sandboxes/{other.id}").json()
            return [mine["created_at"], ours, theirs["createdAt"], others["startedAt"]]

        runs = (lambda code: gateway.execute(session, code), box.run, other.run)
        for run in runs:
            run("1")
        before = told()
        assert gateway.call("POST", f"/v1/sessions/{session}/restart").status_code == 200
        for run in runs:
            run("import os; os._exit(1)")
            run("1")
        assert told() == before
