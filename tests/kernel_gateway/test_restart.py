"""The gateway is killed, stopped or replaced: sessions continue, or their next reply says what happened to them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import websocket

from sessions.store.records import Begin, End, read
from tests.gateways import KEYS, Gateway, gateway, text_of
from tests.kernel_gateway.calls import exists, until

#: kernels can be taken over only where they outlive the gateway
pytestmark = pytest.mark.engine
WAITS = """
import os, time
print('early')
open('begun', 'w').close()
while not os.path.exists('go'):
    time.sleep(0.1)
n += 100
print('late')
"""


def kill(serving: Gateway) -> None:
    """Kill the gateway, as a power cut does."""
    serving.process.kill()
    serving.process.wait()


@contextlib.contextmanager
def in_background(work: Any, *args: Any, **options: Any) -> Iterator[concurrent.futures.Future[Any]]:
    """Run a call in a thread meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        yield threads.submit(work, *args, **options)


def state_of(serving: Gateway, session: str) -> str:
    state: str = serving.call("GET", f"/v1/sessions/{session}").json()["state"]
    return state


def busy(serving: Gateway, session: str, code: str) -> threading.Thread:
    """Start a cell whose client will not get an answer; return when the cell has begun."""

    def call() -> None:
        with contextlib.suppress(Exception):  # the gateway is killed
            serving.execute(session, code)

    thread = threading.Thread(target=call)
    thread.start()
    until(
        lambda: exists(serving, session, "begun")
    )  # the state busy is not enough: the cell may still be on its way to the kernel
    return thread


@pytest.fixture
def foreign() -> Iterator[str]:
    """A container of another owner that resembles the gateway's containers."""
    with contextlib.closing(docker.from_env()) as client:
        container = client.containers.run(
            "kernel-gateway/python:latest",
            ["/opt/venv/bin/python", "-c", "import time; time.sleep(300)"],
            detach=True,
            network_mode="none",
            labels={"kernel-gateway.instance": "somebody-else"},
        )
        yield str(container.id)
        container.remove(force=True)


def outcomes(state: Path) -> tuple[Counter[str], bool]:
    """Count the audit's outcomes; also return True if each execution that began has ended once."""
    records = list(read(state / "audit.db"))
    begun = Counter(record.execution for record in records if isinstance(record.what, Begin))
    ended = Counter(record.execution for record in records if isinstance(record.what, End))
    return Counter(record.what.outcome for record in records if isinstance(record.what, End)), begun == ended


@pytest.mark.parametrize("sessions", [pytest.param(3, marks=pytest.mark.gate), 10])
def test_a_gateway_that_is_killed_loses_nothing(tmp_path: Path, foreign: str, sessions: int) -> None:
    with gateway("docker", state_dir=str(tmp_path), pool_size="1") as serving:
        for number in range(sessions):
            assert text_of(serving.execute(f"s{number}", f"n = {number}; print(n)")) == f"{number}\n"
        kernels = {container["Id"] for container in serving.containers()}
        left = busy(serving, "s1", WAITS)
        kill(serving)
        left.join()
    with gateway("docker", state_dir=str(tmp_path), pool_size="1") as serving:
        listed = serving.call("GET", "/v1/sessions").json()["sessions"]
        assert [session["name"] for session in listed] == [f"s{number}" for number in range(sessions)]
        for number in [*range(2, sessions), 0]:
            reply = serving.execute(f"s{number}", "n += 1; print(n)")
            assert (text_of(reply), reply["state"]) == (f"{number + 1}\n", "preserved")
            assert reply["state_reason"] == "the gateway was restarted; the kernel kept running"
            assert reply["incarnation"] == 1
            assert serving.execute(f"s{number}", "1")["state_reason"] is None
        with in_background(serving.execute, "s1", "print(n)") as next_cell:
            assert state_of(serving, "s1") == "busy"  # with the cell that ran before the kill
            assert serving.call("PUT", "/v1/sessions/s1/files/go", data=b"").status_code == 204
            reply = next_cell.result()
        assert (text_of(reply), reply["state"]) == ("101\n", "preserved")
        assert "while a cell ran" in reply["state_reason"]
        notebook = serving.call("GET", "/v1/sessions/s1/notebook").text
        assert "late" in notebook
        until(lambda: len(serving.containers()) == sessions + 1)  # plus a warm kernel
        assert len(kernels & {container["Id"] for container in serving.containers()}) == sessions
        for number in range(sessions):
            serving.call("DELETE", f"/v1/sessions/s{number}")
        until(lambda: len(serving.containers()) == 1)
    ended, once = outcomes(tmp_path)
    assert (ended["unknown"], once) == (1, True)
    with contextlib.closing(docker.from_env()) as client:
        assert client.containers.get(foreign).status == "running"


#: ways in which a kernel ends without its client's wish
DEATHS = {"out of memory": "kept = []\nwhile True: kept.append(b'x' * (1 << 24))", "exit": "import os; os._exit(3)"}


@pytest.mark.parametrize("code", DEATHS.values(), ids=DEATHS)
def test_files_outlive_their_kernel_and_then_the_gateway_and_end_with_their_session(tmp_path: Path, code: str) -> None:
    with gateway("docker", state_dir=str(tmp_path), memory="128m", disk="200m") as serving:
        # More than the kernel's memory: files are not counted there.
        written = serving.execute(
            "s", "with open('big', 'wb') as file:\n for _ in range(150): file.write(b'x' * (1 << 20))"
        )
        assert written["status"] == "ok", written
        assert serving.call("PUT", "/v1/sessions/s/files/a", data=b"content").status_code == 204
        died = serving.execute("s", code, timeout=60)
        assert (died["status"], died["state"]) == ("died", "lost")
        assert serving.call("GET", "/v1/sessions/s/files/a").content == b"content"
        assert text_of(serving.execute("s", "print(open('a').read())")) == "content\n"
        serving.execute("s", "import os; os._exit(1)")
        kill(serving)
    with gateway("docker", state_dir=str(tmp_path), memory="128m", disk="200m") as serving:
        assert text_of(serving.execute("s", "print(open('a').read())")) == "content\n"
        assert serving.call("GET", "/v1/sessions/other/files/a").status_code == 404
        serving.call("DELETE", "/v1/sessions/s")
        with contextlib.closing(docker.from_env()) as client:
            label = f"kernel-gateway.instance={serving.instance}"
            until(lambda: not client.volumes.list(filters={"label": label}))
        assert text_of(serving.execute("s", "import os; print(os.listdir())")) == "[]\n"


def test_half_made_and_half_ended_sessions_are_removed(tmp_path: Path) -> None:
    with gateway("docker", state_dir=str(tmp_path)) as serving:
        serving.execute("dead", "import os; os._exit(1)")
        serving.execute("ended", "x = 1")
        serving.execute("gone", "x = 1")
        with in_background(serving.call, "POST", "/v1/sessions", json={"name": "half"}) as creating:
            until(lambda: len(serving.containers()) == 3)
            with in_background(serving.call, "DELETE", "/v1/sessions/ended"):
                time.sleep(0.05)
                kill(serving)
            assert creating.exception() is not None
        with contextlib.closing(docker.from_env()) as client:
            for container in serving.containers():  # a container is killed while no gateway runs
                if container["State"] == "running":
                    client.api.kill(container["Id"])
                    break
    with gateway("docker", state_dir=str(tmp_path)) as serving:
        until(lambda: all(container["State"] == "running" for container in serving.containers()))
        names = {session["name"] for session in serving.call("GET", "/v1/sessions").json()["sessions"]}
        assert names <= {"dead", "gone", "half"}
        assert len(serving.containers()) <= len(names)
        for name in ("dead", "ended", "gone"):
            reply = serving.execute(name, "print('x' in dir())")
            held = text_of(reply) == "True\n"
            assert (reply["state"] == "preserved") == held, reply  # never one without the other
        assert serving.execute("dead", "1")["status"] == "ok"


def test_a_session_survives_repeated_kills_of_the_gateway(tmp_path: Path) -> None:
    for number in range(3):
        with gateway("docker", state_dir=str(tmp_path)) as serving:
            reply = serving.execute("s", "n = globals().get('n', 0) + 1; print(n)")
            assert text_of(reply) == f"{number + 1}\n"
            kill(serving)
    with gateway("docker", state_dir=str(tmp_path)) as serving:
        assert text_of(serving.execute("s", "print(n)")) == "3\n"


@contextlib.contextmanager
def channels(serving: Gateway, kernel: str) -> Iterator[websocket.WebSocket]:
    url = f"{serving.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels"
    socket = websocket.create_connection(url, header={"Authorization": f"Bearer {KEYS['alice']}"}, timeout=60)
    try:
        yield socket
    finally:
        socket.shutdown()  # type: ignore[no-untyped-call]


def close_code(socket: websocket.WebSocket) -> int:
    while True:
        opcode, frame = socket.recv_data(control_frame=True)
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return int.from_bytes(frame[:2], "big")


def test_a_gateway_that_is_stopped_lets_cells_end_and_starts_nothing_new(tmp_path: Path) -> None:
    with gateway("docker", state_dir=str(tmp_path), drain_timeout="30") as serving:
        serving.execute("s", "x = 1")
        kernel = serving.kernels()[0]
        with (
            channels(serving, kernel) as socket,
            in_background(serving.execute, "s", "import time; time.sleep(6); print(x)") as running,
        ):
            until(lambda: state_of(serving, "s") == "busy")
            serving.process.send_signal(signal.SIGTERM)
            until(lambda: not serving.ready())
            for path, body in (("/v1/sessions/new/execute", {"code": "1"}), ("/v1/sessions", {"name": "other"})):
                refused = serving.call("POST", path, json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "SB028"), refused.text
                assert int(refused.headers["Retry-After"]) > 0
            assert text_of(running.result()) == "1\n"
            assert close_code(socket) == 1001
        assert serving.process.wait(60) == 0
        assert serving.containers() == []
    with gateway("docker", state_dir=str(tmp_path)) as serving:
        reply = serving.execute("s", "print('x' in dir())")
        assert (text_of(reply), reply["state"], reply["state_reason"]) == (
            "False\n",
            "lost",
            "the gateway was stopped",
        )


def test_a_cell_that_outlasts_the_drain_timeout_is_interrupted(tmp_path: Path) -> None:
    with gateway("docker", state_dir=str(tmp_path), drain_timeout="1") as serving:
        serving.execute("s", "x = 1")
        with in_background(serving.execute, "s", "import time; time.sleep(60)") as running:
            until(lambda: state_of(serving, "s") == "busy")
            serving.process.send_signal(signal.SIGTERM)
            reply = running.result()
        assert (reply["status"], reply["state"]) == ("interrupted", "preserved")
        assert serving.process.wait(60) == 0


def test_a_cell_runs_on_while_a_stopped_gateway_is_replaced(tmp_path: Path) -> None:
    with gateway("docker", state_dir=str(tmp_path), drain_timeout="600", keep_sessions="true") as serving:
        serving.execute("s", "n = 1")
        request = {"json": {"code": WAITS}}
        with in_background(serving.call, "POST", "/v1/sessions/s/execute", **request) as running:
            until(lambda: exists(serving, "s", "begun"))
            serving.process.send_signal(signal.SIGTERM)
            answer = running.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "SB048")
        assert serving.process.wait(60) == 0
    with gateway("docker", state_dir=str(tmp_path)) as serving:
        with in_background(serving.execute, "s", "print(n)") as next_cell:
            assert state_of(serving, "s") == "busy"
            assert serving.call("PUT", "/v1/sessions/s/files/go", data=b"").status_code == 204
            reply = next_cell.result()
        assert (text_of(reply), reply["state"]) == ("101\n", "preserved")
        assert "while a cell ran" in reply["state_reason"]
        assert "late" in serving.call("GET", "/v1/sessions/s/notebook").text
    assert outcomes(tmp_path)[0]["unknown"] == 1


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_no_cell_is_left_at_a_breakpoint(tmp_path: Path, end: str) -> None:
    code = "def f():\n    return 1\nn = f()"
    launch = {"command": "launch", "code": code, "breakpoints": [{"line": 2}]}
    with gateway("docker", state_dir=str(tmp_path), keep_sessions="true") as serving:
        serving.execute("s", "n = 0")
        seen = serving.call("POST", "/v1/sessions/s/debug", json=launch).json()
        while seen["state"] == "running":
            seen = serving.call("POST", "/v1/sessions/s/debug", json={"command": "wait"}).json()
        assert seen["state"] == "stopped"
        if end == "killed":
            kill(serving)
    with gateway("docker", state_dir=str(tmp_path), keep_sessions="true") as serving:
        reply = serving.execute("s", "print(n)", timeout=60)
        assert (text_of(reply), reply["state"]) == ("0\n", "preserved")
        assert ("stood at a breakpoint" in reply["state_reason"]) == (end == "killed")
        assert text_of(serving.execute("s", "print(f())", timeout=60)) == "1\n"
        assert serving.call("POST", "/v1/sessions/s/debug", json=launch).json()["state"] in {"stopped", "running"}
        assert serving.call("DELETE", "/v1/sessions/s").status_code == 204


def test_the_second_signal_does_not_wait_for_cells(tmp_path: Path) -> None:
    with gateway("docker", state_dir=str(tmp_path), drain_timeout="600") as serving:
        serving.execute("s", "x = 1")
        with in_background(serving.execute, "s", "import time; time.sleep(60)") as running:
            until(lambda: state_of(serving, "s") == "busy")
            serving.process.send_signal(signal.SIGTERM)
            until(lambda: not serving.ready())
            serving.process.send_signal(signal.SIGTERM)
            assert serving.process.wait(60) == 0
            assert running.result()["status"] in {"died", "interrupted"}
        assert serving.containers() == []


def test_the_next_gateway_takes_over_kept_sessions(tmp_path: Path) -> None:
    with gateway("docker", state_dir=str(tmp_path), pool_size="1", keep_sessions="true") as serving:
        serving.execute("s", "x = 41")
        kernel = serving.kernels()[0]
        with channels(serving, kernel) as socket:
            serving.process.send_signal(signal.SIGTERM)
            assert close_code(socket) == 1001
        assert serving.process.wait(60) == 0
        assert len(serving.containers()) == 1  # the warm kernel has ended
    with gateway("docker", state_dir=str(tmp_path)) as serving:
        reply = serving.execute("s", "print(x + 1)")
        assert (text_of(reply), reply["state"]) == ("42\n", "preserved")
        with channels(serving, kernel) as socket:  # a front end finds its kernel by the same id
            header = {
                "msg_id": "m",
                "msg_type": "kernel_info_request",
                "session": "c",
                "username": "",
                "version": "5.3",
            }
            request = {"channel": "control", "header": header, "parent_header": {}, "metadata": {}, "content": {}}
            socket.send(json.dumps(request))
            assert any(json.loads(socket.recv())["msg_type"] == "kernel_info_reply" for _ in range(10))
    assert serving.containers() == []


def test_kernels_that_cannot_outlive_the_gateway_are_reported_as_lost(tmp_path: Path) -> None:
    with gateway("process", state_dir=str(tmp_path)) as serving:
        serving.execute("s", "x = 1")
        kill(serving)
    with gateway("process", state_dir=str(tmp_path)) as serving:
        reply = serving.execute("s", "print('x' in dir())")
        assert (text_of(reply), reply["state"]) == ("False\n", "lost")
        assert reply["state_reason"] == "the kernel ended while the gateway was away"
