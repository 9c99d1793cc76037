"""A whole gateway whose idle sessions sleep, over the wire and with real gVisor."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kernel_gateway.dialects.jupyter.models import kernel_id
from sessions.model.values import SessionKey
from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.jupyter import connected

pytestmark = pytest.mark.engine

#: seconds until a session sleeps or is gone; the culler looks every five
SOON = 60.0


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway(
        "docker", golden_images="auto", preload="", idle_timeout="2", cull_connected="true"
    ) as serving:
        serving.wait_for_sleep()
        yield serving


def make(gateway: Gateway) -> str:
    """Make a session that sleeps when it is idle, and return its name."""
    name = uuid.uuid4().hex
    made = gateway.call("POST", "/v1/sessions", json={"name": name, "on_idle": "sleep"})
    assert (made.status_code, made.json().get("on_idle")) == (201, "sleep"), made.text
    return name


def wait(gateway: Gateway, name: str, state: str) -> None:
    deadline = time.monotonic() + SOON
    while (shown := gateway.call("GET", f"/v1/sessions/{name}").json())["state"] != state:
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)


def test_an_idle_session_sleeps_on_disk_and_wakes_with_variables_and_files(gateway: Gateway) -> None:
    name = make(gateway)
    gateway.execute(name, "x = list(range(1000)); notes = open('notes.txt', 'w+'); notes.write('kept')")
    wait(gateway, name, "asleep")
    images = list((gateway.state_dir / "asleep").rglob("*.sealed"))
    assert len(images) == 3
    reply = gateway.execute(name, "print(sum(x), notes.flush(), open('notes.txt').read())")
    assert (reply["outputs"][0]["text"], reply["state"]) == ("499500 None kept\n", "preserved")
    assert [image for image in images if image.exists()] == []


def test_a_session_sleeps_without_the_wish(gateway: Gateway) -> None:
    assert gateway.call("POST", "/v1/sessions", json={"name": "usual"}).json()["on_idle"] == "auto"
    wait(gateway, "usual", "asleep")


def test_a_session_is_ended_if_that_is_asked_for(gateway: Gateway) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": "plain", "on_idle": "end"})
    deadline = time.monotonic() + SOON
    while gateway.call("GET", "/v1/sessions/plain").status_code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.1)


async def test_a_file_and_a_connected_jupyter_client_wake_a_session(gateway: Gateway) -> None:
    name = make(gateway)
    gateway.execute(name, "x = 41; print(open('here.txt', 'w').write('kept'))")
    wait(gateway, name, "asleep")
    assert gateway.call("GET", f"/v1/sessions/{name}/files/here.txt").text == "kept"
    async with connected(gateway, kernel_id(SessionKey("alice", name))) as client:
        assert await client.text("print(x)") == "41\n"
        wait(gateway, name, "asleep")
        assert await client.text("print(x + 1)") == "42\n"


def test_twenty_sessions_fall_asleep_and_wake_at_once_beside_one_that_computes(gateway: Gateway) -> None:
    names = [make(gateway) for _ in range(20)]
    for number, name in enumerate(names):
        gateway.execute(name, f"x = {number}; kept = bytes([x]) * 2**20; print(open('here.txt', 'w').write(str(x)))")
    with ThreadPoolExecutor(len(names) + 1) as clients:
        load = clients.submit(
            gateway.execute, "load", "import time\nend = time.time() + 90\nwhile time.time() < end: 1", timeout=120
        )
        for name in names:
            wait(gateway, name, "asleep")
        cell = "print(x, set(kept) == {x}, open('here.txt').read())"
        replies = list(clients.map(lambda name: gateway.execute(name, cell), names))
        shown = [(reply["outputs"][0]["text"], reply["state"]) for reply in replies]
        assert shown == [(f"{number} True {number}\n", "preserved") for number in range(len(names))]
        assert load.result()["status"] == "ok"
    for name in [*names, "load"]:
        gateway.call("DELETE", f"/v1/sessions/{name}")


def test_a_session_that_was_debugged_keeps_its_variables_whether_it_can_sleep_or_not(gateway: Gateway) -> None:
    name = make(gateway)
    path = f"/v1/sessions/{name}"
    stop = {"command": "launch", "code": "def f(n):\n    return n\nx = f(41)", "breakpoints": [{"line": 2}]}
    gateway.execute(name, "x = 40")
    assert gateway.call("POST", f"{path}/checkpoints", json={"name": "before"}).status_code == 201
    assert debugged(gateway, path, **stop) == "stopped"
    for call in ("sleep", "checkpoints", "branch"):
        refused = gateway.call("POST", f"{path}/{call}", json={"as": f"{name}-b"} if call == "branch" else {})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "SB041"), refused.text
    assert debugged(gateway, path, command="continue") == "ended"
    refused = gateway.call("POST", f"{path}/checkpoints", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "SB041"), refused.text
    asleep = gateway.call("POST", f"{path}/sleep")
    assert asleep.status_code == 200 or "the session stays awake" in asleep.json()["error"]["message"]
    reply = gateway.execute(name, "print(x)")
    assert (reply["outputs"][0]["text"], reply["state"]) == ("41\n", "preserved")
    assert debugged(gateway, path, **stop) == "stopped"
    assert gateway.call("POST", f"{path}/rollback", json={"to": "before"}).status_code == 200
    reply = gateway.execute(name, "print(x)")
    assert (reply["outputs"][0]["text"], reply["state"]) == ("40\n", "rolled_back")
    assert gateway.call("POST", f"{path}/sleep").status_code == 200
    assert debugged(gateway, path, **stop) == "stopped"


def debugged(gateway: Gateway, path: str, **command: object) -> str:
    """Do a command of the debugger; return the state of the cell when it stops or ends."""
    answer = gateway.call("POST", f"{path}/debug", json=command)
    assert answer.status_code == 200, answer.text
    state: str = answer.json()["state"]
    return debugged(gateway, path, command="wait") if state == "running" else state


def test_a_sleeping_session_outlives_a_gateway_that_is_killed(gateway: Gateway) -> None:
    name = make(gateway)
    gateway.execute(name, "x = 41")
    wait(gateway, name, "asleep")
    gateway.process.kill()
    gateway.process.wait()
    with gateways.gateway(
        "docker", golden_images="auto", preload="", idle_timeout="60", state_dir=str(gateway.state_dir)
    ) as later:
        reply = later.execute(name, "print(x)")
        assert (reply["outputs"][0]["text"], reply["state"]) == ("41\n", "preserved")


def test_a_session_wakes_under_other_settings_than_it_fell_asleep_under(tmp_path: Path) -> None:
    """Its container is described otherwise than the one that was written, which gVisor of 2026 notices."""
    settings = {"checkpoints": "auto", "preload": "", "idle_timeout": "2"}
    serving = partial(gateways.gateway, "docker", must_be_ready=True, state_dir=str(tmp_path), **settings)
    with serving(keep_sessions="true") as earlier:
        earlier.wait_for_sleep()
        name = make(earlier)
        earlier.execute(name, "x = 41")
        wait(earlier, name, "asleep")
    with serving(temporary=str(64 * 2**20)) as later:
        reply = later.execute(name, "print(x)")
        assert (reply["outputs"][0]["text"], reply["state"]) == ("41\n", "preserved")
        assert later.call("DELETE", f"/v1/sessions/{name}").status_code == 204
