"""Code that the policy forbids runs in no dialect; code that the policy allows runs as usual."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sessions.store.records import Begin, End
from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway import jupyter, sockets
from tests.kernel_gateway.accounts import accounts, execute, outcomes
from tests.kernel_gateway.agentrun import boxed, end, failed
from tests.kernel_gateway.calls import NDJSON, failure

#: imports a module that the policy forbids, under a name that must appear in no log and no audit
HOSTILE = "import ftplib as a_very_secret_word\nx = 2"
PROBLEM = "Line 1: Import: ftplib"
HARMLESS = "x = 1\nprint(x)"
REFUSED = (422, "SB007")


@pytest.fixture(scope="module")
def strict() -> Iterator[Gateway]:
    with gateways.gateway("process", code_policy="ragflow-strict") as gateway:
        yield gateway


def shown(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of the reply among a channel's messages."""
    (reply,) = [message["content"] for message in seen if message["channel"] == "shell"]
    found: dict[str, Any] = reply
    return found


async def test_forbidden_code_runs_without_a_policy() -> None:
    with gateways.gateway("process") as gateway, boxed(gateway) as box:
        assert gateway.execute("s", HOSTILE)["status"] == "ok"
        assert end(box.run(HOSTILE)) == "ok"
        assert box.command("echo 1")["stdout"] == "1\n"
        (kernel,) = [kernel for kernel in gateway.kernels() if kernel != box.id][:1]
        async with jupyter.connected(gateway, kernel) as client, sockets.connected(gateway, "s") as stream:
            assert shown(await client.execute(HOSTILE))["status"] == "ok"
            assert (
                shown(await client.execute("", user_expressions={"a": "open"}))["user_expressions"]["a"]["status"]
                == "ok"
            )
            assert (await stream.run(HOSTILE))[-1]["status"] == "ok"


async def test_the_policy_holds_in_every_dialect(strict: Gateway) -> None:
    before = outcomes(strict.state_dir)
    with boxed(strict) as box:
        # allowed code
        assert strict.text("s", HARMLESS) == "1\n"
        assert box.text(HARMLESS) == "1\n"
        kernel = strict.call("POST", "/api/kernels", json={}).json()["id"]
        async with jupyter.connected(strict, kernel) as client, sockets.connected(strict, "s") as stream:
            assert await client.text(HARMLESS) == "1\n"
            assert await stream.text(HARMLESS) == "1\n"
            # forbidden code
            for headers in ({}, {"Accept": NDJSON}):
                response = execute(strict, HOSTILE, headers=headers)
                assert failure(response) == REFUSED
                error = response.json()["error"]
                assert error["details"] == {"profile": "ragflow-strict", "problems": [PROBLEM]}
                assert PROBLEM in error["message"]
            response = box.call("POST", "/contexts/execute", json={"code": HOSTILE})
            assert failed(response) == (422, "INVALID_REQUEST")
            assert PROBLEM in response.json()["message"]
            response = box.call("POST", "/processes/cmd", json={"command": "touch a_very_secret_word"})
            assert failed(response) == (422, "INVALID_REQUEST")
            seen = await client.execute(HOSTILE)
            assert [message["header"]["msg_type"] for message in seen] == ["error", "status", "execute_reply"]
            assert shown(seen)["ename"] == "PolicyViolation"
            assert PROBLEM in shown(seen)["traceback"][0]
            await stream.send(code=HOSTILE)
            error = (await stream.until("error"))[-1]["error"]
            assert (error["code"], error["details"]["problems"]) == ("SB007", [PROBLEM])
            # no forbidden code has run, and the sessions still work
            assert await client.text("print(x)") == "1\n"
            assert await stream.text("print(x)") == "1\n"
        assert box.text("print(x)") == "1\n"
        assert "a_very_secret_word" not in box.names()
    assert outcomes(strict.state_dir) - before == Counter(ok=7, refused=6)


def test_a_refusal_is_recorded_in_the_audit_the_log_and_the_metrics(strict: Gateway) -> None:
    def counted() -> float:
        text = strict.call("GET", "/metrics", tenant=None).text
        return float(re.findall(r"^kernel_gateway_policy_refusals_total (\S+)$", text, re.MULTILINE)[0])

    before = counted()
    assert failure(execute(strict, HOSTILE)) == REFUSED
    assert counted() == before + 1
    (begin, ended) = list(accounts(strict.state_dir).values())[-1]
    assert isinstance(begin, Begin)
    assert (begin.tenant, begin.session, begin.language) == ("alice", "s", "python")
    assert ended == End(outcome="refused", error="SB007")
    told = [entry for entry in strict.logged() if entry["event"] == "execution refused"][-1]
    assert (told["tenant"], told["profile"], told["problems"]) == ("alice", "ragflow-strict", 1)
    for path in strict.state_dir.iterdir():
        if path.is_file():
            assert b"ftplib" not in path.read_bytes(), path
            assert b"a_very_secret_word" not in path.read_bytes(), path


def test_arguments_do_not_make_allowed_code_forbidden(strict: Gateway) -> None:
    """The gateway appends a call of `main`, which imports and would be forbidden itself."""
    code = "def main(a):\n    print(a)"
    assert strict.text("arguments", code, arguments={"a": "import os"}) == "import os\n"


def test_refused_code_can_be_sent_again_with_its_idempotency_key(strict: Gateway) -> None:
    for _ in range(2):
        response = execute(strict, "", json={"code": HOSTILE, "idempotency_key": "k"})
        assert failure(response) == REFUSED


async def test_the_policy_checks_user_expressions(strict: Gateway) -> None:
    kernel = strict.call("POST", "/api/kernels", json={}).json()["id"]
    async with jupyter.connected(strict, kernel) as client:
        reply = shown(await client.execute("x = 1", user_expressions={"a": "x"}))
        assert reply["user_expressions"]["a"]["data"]["text/plain"] == "1"
        reply = shown(await client.execute("x = 1", user_expressions={"a": "x", "b": "exec('x = 2')"}))
        assert (reply["ename"], reply["status"]) == ("PolicyViolation", "error")
        assert "Line 1: Call: exec" in reply["evalue"]


async def test_a_message_that_is_no_strict_json_does_not_reach_the_kernel(strict: Gateway) -> None:
    """Python's JSON parser accepts more than JSON; the kernel would run code that the audit reports as not run."""
    kernel = strict.call("POST", "/api/kernels", json={}).json()["id"]
    async with jupyter.connected(strict, kernel) as client:
        assert await client.text(HARMLESS) == "1\n"
        for odd in (float("nan"), "\ud800"):
            reply = shown(await client.execute("x = 2", more=odd))
            assert reply["ename"] == "InvalidRequest"
        assert await client.text("print(x)") == "1\n"


def test_the_other_profile_checks_arguments_and_input_too() -> None:
    with gateways.gateway("process", code_policy="weknora") as gateway:
        code = "def main(a): print(a, input())"
        fine: dict[str, Any] = {"arguments": {"a": "b"}, "stdin": ["c"]}
        assert gateway.text("s", code, **fine).endswith("b c\n")
        assert gateway.text("s", "import os; print(1)") == "1\n"
        for kind, bad in (
            ("script", {"code": "x = 'service'"}),
            ("args[0]", {"arguments": {"a": "b; c"}}),
            ("stdin", {"stdin": ["$(c)"]}),
        ):
            response = execute(gateway, "", json={"code": code} | fine | bad)
            assert failure(response) == REFUSED
            (problem,) = response.json()["error"]["details"]["problems"]
            assert problem.startswith(f"{kind}: ")
