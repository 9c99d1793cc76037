"""AgentRun's processes over HTTP: commands run to their end, and other processes of the machine stay hidden."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateways import Gateway
from tests.kernel_gateway.agentrun import Box, boxed, failed
from tests.kernel_gateway.calls import failure, process_only, raw, until

COMMAND = "/processes/cmd"
docker_only = pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)


def running(box: Box, word: str) -> list[dict[str, Any]]:
    """Return the processes whose command contains a word."""
    listed = box.get("/processes")
    assert (listed["total"], listed["truncated"]) == (len(listed["items"]), False)
    return [item for item in listed["items"] if word in item["command"]]


@pytest.fixture
def seconds() -> str:
    """Seconds of a sleep: a unique number, which identifies the process."""
    return f"3{secrets.randbelow(10**8):08}"


@pytest.fixture
def sleeper(box: Box, seconds: str) -> Iterator[dict[str, Any]]:
    """A process in the background of the sandbox."""
    box.command(f"sleep {seconds} >/dev/null 2>&1 &")
    (found,) = until(lambda: running(box, f"sleep {seconds}"))
    yield found
    box.call("DELETE", f"/processes/{found['processId']}")


# -- commands --------------------------------------------------------------------------------------------------


def test_a_command_returns_its_output_and_exit_code(box: Box) -> None:
    reply = box.post(COMMAND, command="echo out | tr a-z A-Z && echo err >&2; exit 3", cwd="/tmp")
    result = reply["result"]
    assert reply["status"] == "completed"
    assert reply["executionId"]
    assert (result["exitCode"], result["stdout"], result["stderr"], result["cwd"]) == (3, "OUT\n", "err\n", "/tmp")
    assert reply["executionTimeMs"] == result["executionTimeMs"] >= 0


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("", ""),
        ("true", ""),
        ("printf 'no line end'", "no line end"),
        ("echo grüße 日本語 🦊", "grüße 日本語 🦊\n"),
        ("printf '\\377'", "\ufffd"),
        ("echo 'a\nb'", "a\nb\n"),
        ("cat", ""),
        ("echo $((6 * 7))", "42\n"),
        ("-n; echo on", "on\n"),
    ],
)
@process_only
def test_a_command_is_run_by_the_shell(box: Box, command: str, stdout: str) -> None:
    assert box.command(command)["stdout"] == stdout


def test_a_command_starts_in_the_requested_directory(box: Box) -> None:
    box.post("/filesystem/mkdir", path="/home/user/some where")
    box.command("pwd > place", cwd="/home/user/some where")
    assert box.read("/home/user/some where/place").endswith("/some where\n")
    for cwd in (None, "", "/home/user"):
        assert "some where" in box.command("ls", cwd=cwd)["stdout"]
    assert failed(box.call("POST", COMMAND, json={"command": "true", "cwd": "/home/user/absent"})) == (404, "NOT_FOUND")
    for cwd in ("/etc", "/"):
        assert box.command("pwd", cwd=cwd)["stdout"] == f"{cwd}\n"
    refused = box.call("POST", COMMAND, json={"command": "true", "cwd": "/etc\0"})
    assert failed(refused) == (400, "INVALID_REQUEST")


@docker_only
def test_a_command_in_a_container_sees_its_directory_and_user(box: Box) -> None:
    assert box.command("pwd")["stdout"] == "/home/user\n"
    assert box.command("pwd", cwd="/tmp")["stdout"] == "/tmp\n"
    assert box.command("id -u")["stdout"] == "65532\n"


@process_only
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"x",
        b'{"command": 1}',
        b'{"command": null}',
        b'{"command": ["ls"]}',
        b'{"command": "\\u0000"}',
        b'{"command": "true", "timeout": 0}',
        b'{"command": "true", "timeout": "x"}',
        b'{"command": "' + b"x" * 200_000 + b'"}',
    ],
    ids=lambda body: ascii(body)[:40],
)
def test_an_invalid_body_runs_nothing(gateway: Gateway, box: Box, body: bytes) -> None:
    answer = raw(gateway, "POST", f"/sandboxes/{box.id}{COMMAND}", body=body)
    assert (failure(answer)[0], answer.json["code"]) == (400, "INVALID_REQUEST")


def test_a_timeout_ends_a_command_with_all_its_processes(box: Box, seconds: str) -> None:
    reply = box.post(COMMAND, command=f"echo begun; sleep {seconds} | sleep {seconds}", timeout=1)
    assert (reply["status"], reply["result"]["exitCode"], reply["result"]["stdout"]) == ("timeout", 124, "begun\n")
    until(lambda: not running(box, seconds))


def test_a_timeout_ends_processes_that_have_left_their_session(box: Box, seconds: str) -> None:
    daemon = f"(setsid sh -c 'sleep {seconds} & sleep {seconds} & wait' >/dev/null 2>&1 &)"
    assert box.command(daemon, timeout=20)["exitCode"] == 0
    for process in until(lambda: running(box, f"sleep {seconds}")):
        box.call("DELETE", f"/processes/{process['processId']}")
    reply = box.post(COMMAND, command=f"{daemon}; sleep {seconds}", timeout=1)
    assert reply["status"] == "timeout"
    assert running(box, seconds) == []


def test_a_client_that_leaves_ends_its_command(box: Box, seconds: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - the kind of timeout varies
        box.call("POST", COMMAND, json={"command": f"touch begun-{seconds}; sleep {seconds}"}, timeout=5)
    assert f"begun-{seconds}" in box.names()
    until(lambda: not running(box, seconds))


def test_a_background_process_does_not_delay_the_answer(box: Box, seconds: str) -> None:
    assert box.command(f"sleep {seconds} & echo begun", timeout=20)["stdout"] == "begun\n"
    (found,) = until(lambda: running(box, f"sleep {seconds}"))
    box.call("DELETE", f"/processes/{found['processId']}")


def test_too_large_output_is_cut_and_marked(box: Box) -> None:
    result = box.command("yes | head -c 20000000; echo last >&2", timeout=60)
    assert (len(result["stdout"]), result["stderr"]) == (2 * 2**20, "last\n")
    assert result["truncated"] is True
    assert box.command("echo short")["truncated"] is False


@process_only
def test_the_environment_of_a_command_has_nothing_of_the_gateway(box: Box) -> None:
    told = box.command("env; cat /proc/self/environ")["stdout"]
    assert "HOME=" in told
    assert "KERNEL_GATEWAY_KEYS" not in told
    assert "alice-key" not in told


# -- list and kill ---------------------------------------------------------------------------------------------


def test_a_process_is_listed_described_and_ended(box: Box, sleeper: dict[str, Any], seconds: str) -> None:
    pid = sleeper["processId"]
    assert sleeper["status"] == "running"
    told = box.get(f"/processes/{pid}")
    assert told.items() >= sleeper.items()
    # gVisor does not let one process read another's.
    assert told["working_dir"] or box.gateway.isolation == "docker"
    assert told["resourceUsage"]["memoryMb"] >= 0
    ended = box.call("DELETE", f"/processes/{pid}").json()
    assert (ended["pid"], ended["stopped"]) == (pid, True)
    until(lambda: not running(box, f"sleep {seconds}"))


def test_a_process_that_ignores_sigterm_is_killed(box: Box, seconds: str) -> None:
    # The ignored signals are inherited. `exec` starts no other process, so the list stays stable.
    box.command(f"(trap '' TERM; exec sleep {seconds}) >/dev/null 2>&1 &")
    (stubborn,) = until(lambda: running(box, seconds))
    assert box.call("DELETE", f"/processes/{stubborn['processId']}").json()["stopped"] is True
    assert running(box, seconds) == []


@process_only
def test_an_unknown_or_invalid_pid_is_not_found(gateway: Gateway, box: Box) -> None:
    for pid in ("0", "999999999", "4194305"):
        for method in ("GET", "DELETE"):
            assert failed(box.call(method, f"/processes/{pid}")) == (404, "NOT_FOUND")
    for pid in ("-1", "x", "1e3", "9" * 30, "%31x"):
        for method in ("GET", "DELETE"):
            assert raw(gateway, method, f"/sandboxes/{box.id}/processes/{pid}").status_code == 404


@process_only
def test_the_machines_own_processes_are_neither_shown_nor_ended(
    gateway: Gateway, box: Box, sleeper: dict[str, Any]
) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            shown = {item["pid"] for item in box.get("/processes")["items"]}
            assert sleeper["pid"] in shown
            for pid in (1, os.getpid(), gateway.process.pid, stranger.pid):
                assert pid not in shown
                for method in ("GET", "DELETE"):
                    assert failed(box.call(method, f"/processes/{pid}")) == (404, "NOT_FOUND")
            assert stranger.poll() is None
            assert gateway.process.poll() is None
        finally:
            stranger.kill()


def test_another_sandboxs_processes_are_neither_shown_nor_ended(
    gateway: Gateway, box: Box, sleeper: dict[str, Any], seconds: str
) -> None:
    with boxed(gateway) as other:
        assert running(other, seconds) == []
        if gateway.isolation == "process":  # in a container, the pid belongs to another process or to none
            for method in ("GET", "DELETE"):
                assert failed(other.call(method, f"/processes/{sleeper['pid']}")) == (404, "NOT_FOUND")
    assert running(box, seconds)


@docker_only
def test_only_processes_of_the_sandbox_are_listed(own_box: Box, seconds: str) -> None:
    assert [item["pid"] for item in own_box.get("/processes")["items"]] == [1]
    own_box.command(f"sleep {seconds} >/dev/null 2>&1 &")
    until(lambda: running(own_box, seconds))
    assert len(own_box.get("/processes")["items"]) == 2


@docker_only
def test_the_main_process_of_a_sandbox_cannot_be_ended(own_box: Box) -> None:
    own_box.write("kept", "content")
    assert own_box.get("/processes/1")["status"] == "running"
    assert failed(own_box.call("DELETE", "/processes/1")) == (400, "INVALID_REQUEST")
    assert own_box.read("kept") == "content"
