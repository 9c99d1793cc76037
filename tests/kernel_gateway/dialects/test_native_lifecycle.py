"""A gateway from start to end: admission, culling, exclusive use of a state directory, and what remains at the end."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path

import docker
import pytest
import requests

from tests import gateways
from tests.gateways import Gateway, terminal, text_of
from tests.kernel_gateway.calls import HANGS, WAITS, children, exists, failure, process_only, until, write
from tests.kernel_gateway.conftest import ISOLATIONS
from tests.kernel_gateway.sockets import connected

# -- admission -------------------------------------------------------------------------------------------------


def test_the_eleventh_concurrent_cell_is_refused() -> None:
    with gateways.gateway("process", queue_timeout="1") as gateway, ThreadPoolExecutor(11) as clients:
        gateway.execute("s", "")
        path, body = "/v1/sessions/s/execute", {"code": WAITS, "timeout": 60}
        cells = [clients.submit(gateway.call, "POST", path, json=body) for _ in range(11)]
        refused = next(as_completed(cells)).result()
        assert failure(refused) == (429, "SB008")
        assert int(refused.headers["Retry-After"]) >= 1
        assert gateway.text("s", "'another tenant'", tenant="bob") == "'another tenant'"
        write(gateway, "s", "go")
        assert sorted(cell.result().status_code for cell in cells) == [200] * 10 + [429]
        assert gateway.text("s", "'room again'") == "'room again'"


@pytest.fixture(scope="module")
def small() -> Iterator[Gateway]:
    """A gateway where a tenant may have two sessions."""
    with gateways.gateway("process", max_sessions_per_tenant="2") as gateway:
        yield gateway


def test_a_session_above_the_limit_is_refused_by_every_route(small: Gateway) -> None:
    for name in ("one", "two"):
        assert small.call("POST", "/v1/sessions", json={"name": name}).status_code == 201
    for method, path, body in (
        ("POST", "/v1/sessions", {"name": "three"}),
        ("POST", "/v1/sessions/three/execute", {"code": "1"}),
        ("PUT", "/v1/sessions/three/files/f", {}),
    ):
        response = small.call(method, path, json=body)
        assert failure(response) == (429, "SB008")
        assert int(response.headers["Retry-After"]) >= 1
    assert small.text("one", "'goes on'") == "'goes on'"
    assert small.text("one", "'another tenant'", tenant="bob") == "'another tenant'"
    assert small.call("DELETE", "/v1/sessions/two").status_code == 204
    assert small.text("three", "'room again'") == "'room again'"


def test_a_burst_of_new_sessions_meets_the_same_limit(small: Gateway) -> None:
    def create(number: int) -> int:
        return small.call("POST", "/v1/sessions", json={"name": f"burst-{number}"}, tenant="bob").status_code

    small.call("DELETE", "/v1/sessions/one", tenant="bob")
    with ThreadPoolExecutor(10) as clients:
        assert sorted(clients.map(create, range(10))) == [201] * 2 + [429] * 8
    assert len(small.call("GET", "/v1/sessions", tenant="bob").json()["sessions"]) == 2


# -- culling ---------------------------------------------------------------------------------------------------


async def test_idle_sessions_are_culled_and_the_next_reply_says_why() -> None:
    with gateways.gateway("process", idle_timeout="2") as gateway:
        busy = asyncio.create_task(asyncio.to_thread(gateway.execute, "busy", WAITS))  # noqa: TID251 - awaited
        await asyncio.to_thread(until, lambda: "busy" in present(gateway))
        gateway.execute("idle", "x = 1")
        async with connected(gateway, "open") as only_open, connected(gateway, "talks") as talks:
            for socket in (only_open, talks):
                await socket.run("x = 1")
            while present(gateway) & {"idle", "open"}:
                await talks.send(interrupt=True)  # a frame is activity, an open socket alone is not
                await asyncio.sleep(0.05)
            assert present(gateway) == {"talks", "busy"}
            write(gateway, "busy", "go")
            assert ((await busy)["status"], await talks.text("x")) == ("ok", "1")
            assert await only_open.end() == 1000
        for name in ("idle", "open"):
            reply = gateway.execute(name, "'x' in globals()")
            assert text_of(reply) == "False"
            assert (reply["state"], reply["state_reason"]) == ("lost", "the session was idle for 2 s")
        assert gateway.execute("idle", "")["state"] == "preserved"


def present(gateway: Gateway) -> set[str]:
    """Return the names of the sessions; listing them is no activity."""
    return {session["name"] for session in gateway.call("GET", "/v1/sessions").json()["sessions"]}


def test_a_session_has_a_lifetime_however_busy_it_is() -> None:
    with gateways.gateway("process", max_lifetime="2") as gateway:
        reply = gateway.execute("busy", HANGS, timeout=60)
        assert (reply["status"], reply["error"]["code"]) == ("died", "SB013")
        assert "lifetime" in reply["error"]["message"]
        assert gateway.execute("busy", "")["state"] == "lost"


# -- warm kernels ----------------------------------------------------------------------------------------------


def test_a_session_gets_a_kernel_that_has_imported_what_the_setting_names() -> None:
    with gateways.gateway("process", pool_size="1", pool_max="1", preload="colorsys") as gateway:

        def a_new_session_has_it() -> bool:
            time.sleep(1)  # a session that comes before the import gets its kernel without it, and the next one begins
            name = uuid.uuid4().hex
            return gateway.text(name, "'colorsys' in __import__('sys').modules, 'colorsys' in dir()") == "(True, False)"

        until(a_new_session_has_it)


# -- shutdown --------------------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_sigterm_ends_all_cells_and_processes_and_leaves_nothing(isolation: str) -> None:
    with gateways.gateway(isolation, drain_timeout="1", pool_size="1") as gateway, ThreadPoolExecutor(1) as client:
        cell = client.submit(gateway.execute, "busy", HANGS, timeout=60)
        until(lambda: exists(gateway, "busy", "begun"))
        began = set(children(gateway.process.pid))
        gateway.process.send_signal(signal.SIGTERM)
        reply = cell.result()
        assert gateway.process.wait(60) == 0
        assert (reply["status"], reply["state"], reply["error"]) == ("interrupted", "new", None)
        assert [pid for pid in began if Path(f"/proc/{pid}").exists()] == []
        assert [entry for entry in gateway.logged() if entry["level"] in {"error", "critical"}] == []
        if isolation == "docker":
            assert gateway.containers() == []
            assert volumes(gateway) == []


#: lines of the log at an orderly end
ENDS = {"the gateway stops", "the gateway has stopped"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_log_says_which_signal_ended_a_gateway_and_that_it_has_ended(number: signal.Signals) -> None:
    with gateways.gateway("process") as gateway:
        gateway.execute("s", "x = 1")
        gateway.process.send_signal(number)
        assert gateway.process.wait(60) == 0
        begins, ends = (line for line in gateway.logged() if line["event"] in ENDS)
        assert (begins["signal"], begins["sessions"], begins["kept"]) == (number.name, 1, 0)
        assert ends["event"] == "the gateway has stopped"


def test_nohup_keeps_a_gateway_that_lost_its_terminal() -> None:
    with gateways.gateway("process", under=("env", "--ignore-signal=HUP")) as gateway:
        gateway.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert gateway.text("s", "1 + 1") == "2"


def volumes(gateway: Gateway) -> list[str]:
    """Return the names of a gateway's volumes in the engine."""
    with closing(docker.from_env()) as client:
        filters = {"label": f"kernel-gateway.instance={gateway.instance}"}
        return [volume["Name"] for volume in client.api.volumes(filters=filters)["Volumes"] or []]


def test_kernels_do_not_outlive_a_gateway_that_is_killed() -> None:
    with gateways.gateway("process") as gateway:
        gateway.execute("a", "x = 1")
        began = set(children(gateway.process.pid))
        assert began
        gateway.process.kill()
        gateway.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in began))


def test_the_gateway_raises_its_open_file_limit_and_its_kernels_keep_the_usual_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))  # the usual limit in a user's shell
    try:
        with gateways.gateway("process") as gateway:
            assert resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            seen = gateway.text("s", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))")
            assert seen == f"{(min(1024, hard), hard)}\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- startup ---------------------------------------------------------------------------------------------------


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run a gateway that is expected to end on its own."""
    command = [sys.executable, "-m", "kernel_gateway", "serve", "--isolation", "process", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@process_only
def test_a_second_gateway_on_the_same_state_directory_refuses(gateway: Gateway) -> None:
    ended = serve("--port", "0", "--state-dir", str(gateway.state_dir))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "another gateway uses" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert gateway.call("GET", "/v1/sessions").status_code == 200


@process_only
def test_a_second_gateway_on_the_same_port_refuses(gateway: Gateway, tmp_path: Path) -> None:
    ended = serve("--port", gateway.url.rsplit(":", 1)[1], "--state-dir", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    address = gateway.url.removeprefix("http://")
    told = json.loads(ended.stderr.splitlines()[-1])
    assert (told["event"], told["level"]) == ("the gateway cannot start", "error")
    assert told["error"] == f"cannot listen on {address}: Address already in use"
    assert "Traceback" not in ended.stderr


@process_only
def test_on_a_terminal_a_start_that_fails_ends_with_one_sentence(gateway: Gateway) -> None:
    command = [sys.executable, "-m", "kernel_gateway", "serve", "--isolation", "process", "--port", "0"]
    with terminal() as (shown, there), Path(there).open("w") as errors:
        subprocess.run([*command, "--state-dir", str(gateway.state_dir)], stderr=errors, timeout=60, check=False)
        assert shown().startswith("kernel-gateway: another gateway uses ")


def test_without_a_terminal_every_line_from_the_first_one_is_json() -> None:
    with gateways.gateway("process", max_connections="1000000") as gateway:
        lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    assert lines[0]["event"].startswith("few file descriptors"), "control: a line before that of the start"
    (start,) = (line for line in lines if line["event"] == "the gateway listens")
    assert start["url"] == gateway.url
    assert "no sandbox" in start["isolation"]
    assert all(start[ability].startswith("off, ") for ability in ("golden_images", "sleep"))
    assert "trouble" not in start


def test_without_configured_keys_the_gateway_makes_one_for_the_local_user() -> None:
    with terminal() as (shown, there), gateways.gateway("process", keys="", stdout=there) as gateway:
        file = gateway.state_dir / "key"
        key = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        banner = shown()
        assert re.search(rf"^key of tenant local: {re.escape(key)} ", banner, re.MULTILINE)
        assert "no sandbox" in banner
        assert "Ctrl-C ends all sessions with their files" in banner
        headers = {"Authorization": f"Bearer {key}"}
        assert requests.get(f"{gateway.url}/v1/sessions", headers=headers, timeout=10).status_code == 200
        assert failure(gateway.call("GET", "/v1/sessions")) == (401, "SB020")
        (start,) = (line for line in gateway.logged() if line["event"] == "the gateway listens")
        assert start["key_file"] == str(file)
        assert key not in gateway.log.read_text()


@pytest.mark.curl
def test_with_configured_keys_the_banners_call_takes_the_key_from_the_shell() -> None:
    with terminal() as (shown, there), gateways.gateway("process", stdout=there):
        (line,) = (line for line in shown().splitlines() if "curl" in line)
        program = f"KEY={gateways.KEYS['alice']}\n{line}"
        said = subprocess.run(["sh", "-c", program], check=True, capture_output=True, text=True).stdout
        assert json.loads(said)["outputs"][0]["data"]["text/plain"] == "42"
