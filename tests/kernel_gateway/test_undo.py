"""Checkpoints over the wire: with real gVisor, and how they are refused where there are none."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import mcp
from tests.kernel_gateway.calls import failure
from tests.test_examples import GATEWAY, example, shell
from tests.tiers import cases

#: code that ends its kernel
ENDS = {
    "out of memory": "held = []\nwhile True: held.append(bytearray(8 * 2**20))",
    "exit": "import os; os._exit(1)",
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", golden_images="auto", preload="") as serving:
        serving.wait_for_sleep()
        yield serving


@pytest.fixture
def name(gateway: Gateway) -> Iterator[str]:
    """A session of whose variables and files there is a checkpoint `one`, and which has changed both."""
    name = uuid.uuid4().hex
    text(gateway, name, "x = 1; print(open('file', 'w').write('one'))")
    taken = gateway.call("POST", f"/v1/sessions/{name}/checkpoints", json={"name": "one"})
    told = taken.json()
    assert (taken.status_code, told["name"], told["automatic"], told["after_cell"]) == (201, "one", False, 1), (
        taken.text
    )
    text(gateway, name, "x = 2; print(open('file', 'w').write('two'))")
    yield name
    gateway.call("DELETE", f"/v1/sessions/{name}")


def text(gateway: Gateway, name: str, code: str = "print(x, open('file').read())") -> str:
    return str(gateway.execute(name, code)["outputs"][0]["text"]).strip()


def asked(gateway: Gateway, session: str, what: str, **body: Any) -> Any:
    return gateway.call("POST", f"/v1/sessions/{session}/{what}", json=body)


@pytest.mark.engine
@pytest.mark.gate
def test_a_session_returns_to_a_checkpoint(gateway: Gateway, name: str) -> None:
    back = asked(gateway, name, "rollback", to="one")
    assert (back.status_code, back.json()["state"]) == (200, "idle"), back.text
    reply = gateway.execute(name, "print(x, open('file').read())")
    assert (reply["outputs"][0]["text"], reply["state"]) == ("1 one\n", "rolled_back")
    assert reply["state_reason"] == "the session was rolled back to the checkpoint 'one'"
    assert gateway.execute(name, "x")["state"] == "preserved"
    # The workspace is a new one: a file that is written now is there after the next cell, and in the API.
    assert gateway.call("PUT", f"/v1/sessions/{name}/files/file", data=b"three").status_code == 204
    assert text(gateway, name) == "1 three"


@pytest.mark.engine
def test_a_checkpoint_right_after_a_file_was_written_has_the_file(gateway: Gateway, name: str) -> None:
    for number in "12345":
        assert gateway.call("PUT", f"/v1/sessions/{name}/files/file", data=number.encode()).status_code == 204
        taken = asked(gateway, name, "checkpoints", name=number)
        assert taken.status_code == 201, taken.text
    assert asked(gateway, name, "rollback", to="3").status_code == 200
    assert text(gateway, name) == "2 3"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("step", "state", "shown"), [("rollback", "rolled_back", "1 False\n"), ("restart", "restarted", "False x\n")]
)
def test_a_cell_that_means_the_variables_before_a_rollback_or_restart_is_refused(
    gateway: Gateway, name: str, step: str, state: str, shown: str
) -> None:
    def means(session_id: str) -> Any:
        return asked(gateway, name, "execute", code="open('ran', 'a').write('x')", if_session=session_id)

    meant = gateway.execute(name, "x = 3")["session_id"]
    assert means(meant).json()["state"] == "preserved"
    assert asked(gateway, name, step).status_code == 200
    refused = means(meant)
    assert failure(refused) == (404, "SB011")
    assert "variables are gone" in refused.json()["error"]["message"]
    looks = "import os; print('x' in globals() and x, os.path.exists('ran') and open('ran').read())"
    told = gateway.execute(name, looks)  # the refusal was no report, and its cell has not run
    assert (told["state"], told["outputs"][0]["text"]) == (state, shown)
    assert means(told["session_id"]).json()["state"] == "preserved"


@pytest.mark.engine
def test_a_branch_goes_its_own_way(gateway: Gateway, name: str) -> None:
    branch = f"{name}-b"
    made = gateway.call("POST", f"/v1/sessions/{name}/branch", json={"as": branch, "from": "one"})
    assert (made.status_code, made.headers["Location"]) == (201, f"/v1/sessions/{branch}"), made.text
    now = gateway.call("POST", f"/v1/sessions/{name}/branch", json={"as": f"{name}-c"})
    assert now.status_code == 201, now.text
    reply = gateway.execute(branch, "print(x, open('file').read())")
    assert (reply["outputs"][0]["text"], reply["state"]) == ("1 one\n", "preserved")
    assert text(gateway, f"{name}-c") == "2 two"
    text(gateway, branch, "x = 9; print(open('file', 'w').write('nine'))")
    assert (text(gateway, name), text(gateway, branch)) == ("2 two", "9 nine")
    for each in (branch, f"{name}-c"):
        assert gateway.call("DELETE", f"/v1/sessions/{each}").status_code == 204


@pytest.mark.engine
def test_a_session_with_lower_limits_is_restored_rolled_back_branched_and_woken(gateway: Gateway) -> None:
    """Its container is described otherwise than that of the golden image, which gVisor of 2026 notices."""
    limits, lower = {"disk": 8 * 2**20, "processes": 16}, uuid.uuid4().hex
    look = "import resource as r; print(x, [r.getrlimit(kind)[0] for kind in (r.RLIMIT_FSIZE, r.RLIMIT_NPROC)])"
    restored = 'kernel_gateway_restores_total{result="restored"} '
    before = metric(gateway, restored)
    asked_for = {"name": lower, "limits": limits, "on_idle": "sleep", "idle_timeout": 2}
    assert gateway.call("POST", "/v1/sessions", json=asked_for).status_code == 201
    assert text(gateway, lower, f"x = 1; {look}") == "1 [8388608, 16]"
    assert metric(gateway, restored) == before + 1
    assert asked(gateway, lower, "checkpoints", name="one").status_code == 201
    text(gateway, lower, "x = 2; print(x)")
    assert asked(gateway, lower, "rollback", to="one").status_code == 200
    assert text(gateway, lower, look) == "1 [8388608, 16]"
    branch = f"{lower}-branch"
    assert asked(gateway, lower, "branch", **{"as": branch}).status_code == 201
    assert text(gateway, branch, look) == "1 [8388608, 16]"
    deadline = time.monotonic() + 60
    while (shown := gateway.call("GET", f"/v1/sessions/{lower}").json())["state"] != "asleep":
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    assert text(gateway, lower, look) == "1 [8388608, 16]"
    for session in (lower, branch):
        assert gateway.call("DELETE", f"/v1/sessions/{session}").status_code == 204


def metric(gateway: Gateway, name: str) -> float:
    """Return a metric's value; it is 0 until it is first counted."""
    lines = gateway.call("GET", "/metrics", tenant=None).text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.engine
def test_checkpoints_are_listed_and_deleted(gateway: Gateway, name: str) -> None:
    path = f"/v1/sessions/{name}/checkpoints"
    (one,) = gateway.call("GET", path).json()["checkpoints"]
    assert (one["name"], one["bytes"] > 10 * 2**20) == ("one", True)
    assert gateway.call("DELETE", f"{path}/one").status_code == 204
    assert gateway.call("GET", path).json() == {"checkpoints": []}
    missing = asked(gateway, name, "rollback", to="one")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "SB040")
    taken = asked(gateway, name, "checkpoints", name="a/b")
    assert (taken.status_code, taken.json()["error"]["code"]) == (400, "SB002")


@pytest.mark.engine
@pytest.mark.curl
def test_the_example_of_the_page_works(gateway: Gateway) -> None:
    text(gateway, "demo", "x = 1; print()")
    (commands,) = example("docs/state.md", "curl -H")
    shell(commands.replace(GATEWAY, gateway.url).replace("KEY", KEYS["alice"]))
    assert (gateway.execute("demo", "x")["state"], text(gateway, "demo-b", "print(x)")) == ("rolled_back", "1")
    for each in ("demo", "demo-b"):
        gateway.call("DELETE", f"/v1/sessions/{each}")


@pytest.mark.engine
def test_checkpoints_outlive_a_gateway_that_is_killed() -> None:
    with gateways.gateway("docker", golden_images="auto", preload="") as first:
        first.wait_for_sleep()
        text(first, "kept", "x = 1; print(open('file', 'w').write('one'))")
        assert asked(first, "kept", "checkpoints", name="one").status_code == 201
        text(first, "kept", "x = 2; print()")
        first.process.kill()
        first.process.wait()
        state_dir = str(first.state_dir)
        with gateways.gateway("docker", golden_images="auto", preload="", state_dir=state_dir) as second:
            assert asked(second, "kept", "rollback").status_code == 200
            assert text(second, "kept") == "1 one"


@pytest.mark.engine
@pytest.mark.parametrize("end", cases(ENDS, gate="out of memory"))
def test_with_automatic_checkpoints_a_crash_costs_its_cell(gateway: Gateway, end: str) -> None:
    name = uuid.uuid4().hex
    made = gateway.call("POST", "/v1/sessions", json={"name": name, "checkpoints": "auto"})
    assert (made.status_code, made.json()["checkpoints"]) == (201, "auto"), made.text
    text(gateway, name, "x = 1; print(open('file', 'w').write('one'))")
    crash = gateway.execute(name, f"open('file', 'w').write('lost')\nx = 2\n{end}")
    assert (crash["status"], crash["state"]) == ("died", "rolled_back"), crash
    assert "before the last cell" in crash["state_reason"]
    assert text(gateway, name) == "1 one"
    shown = gateway.call("GET", f"/v1/sessions/{name}").json()
    assert (shown["checkpoint_problem"], shown["state"]) == (None, "idle")
    gateway.call("DELETE", f"/v1/sessions/{name}")


@pytest.mark.engine
def test_a_cell_that_comes_later_does_not_wait_for_its_checkpoint(gateway: Gateway) -> None:
    name = uuid.uuid4().hex
    gateway.call("POST", "/v1/sessions", json={"name": name, "checkpoints": "auto"})
    text(gateway, name, "x = 1; print()")
    for _ in range(10):
        time.sleep(2)  # as a client that thinks
        sent = datetime.now(UTC)
        text(gateway, name, "x += 1; print()")
        (kept,) = gateway.call("GET", f"/v1/sessions/{name}/checkpoints").json()["checkpoints"]
        if datetime.fromisoformat(kept["created_at"]) < sent:
            break
    else:
        pytest.fail("each cell had a checkpoint of its own")
    x = int(text(gateway, name, "print(x)"))
    crash = gateway.execute(name, f"x = 0\n{ENDS['exit']}")
    assert (crash["state"], text(gateway, name, "print(x)")) == ("rolled_back", str(x))
    gateway.call("DELETE", f"/v1/sessions/{name}")


@pytest.mark.engine
@pytest.mark.gate
def test_an_agent_undoes_its_last_cell_by_the_automatic_checkpoint(gateway: Gateway) -> None:
    first = mcp.call(gateway, "run_code", code="x = 1\nprint(open('file', 'w').write('one'))")
    session = first["structuredContent"]["session"]
    mcp.call(gateway, "run_code", session=session, code="x = 2\nimport os; os.remove('file')")

    listed = mcp.call(gateway, "checkpoint", session=session, action="list")["structuredContent"]["checkpoints"]
    assert [each["automatic"] for each in listed] == [True], listed
    back = mcp.call(gateway, "checkpoint", session=session, action="rollback")
    assert back["structuredContent"] == {"session": session, "state": "rolled_back"}
    seen = mcp.call(gateway, "run_code", session=session, code="x, open('file').read()")
    assert (seen["structuredContent"]["state"], seen["structuredContent"]["result"]) == ("rolled_back", "(1, 'one')")
    assert "state rolled_back" in mcp.texts(seen)[0]

    branch = mcp.call(gateway, "checkpoint", session=session, action="branch")["structuredContent"]["session"]
    assert mcp.call(gateway, "run_code", session=branch, code="x")["structuredContent"]["result"] == "1"
    assert branch != session
    for each in (session, branch):
        mcp.call(gateway, "session", session=each, action="end")


def test_without_gvisor_checkpoints_are_refused_with_the_reason(started: Callable[[str], Gateway]) -> None:
    plain = started("process")
    plain.execute("plain", "x = 1")
    for refused in (
        asked(plain, "plain", "checkpoints"),
        asked(plain, "plain", "branch", **{"as": "other"}),
        plain.call("POST", "/v1/sessions", json={"checkpoints": "auto"}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "SB041")
        assert "/readyz" in refused.json()["error"]["message"]
    assert asked(plain, "plain", "rollback").json()["error"]["code"] == "SB040"
    assert plain.execute("plain", "x")["state"] == "preserved"
