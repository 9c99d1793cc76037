"""Runs, lists and ends processes that run beside kernels, in a sandbox of several sessions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kernel_image.protocol import PROCESSES_TOOL, TRUNCATED
from sessions.guest.paths import directory_path
from sessions.guest.tools import ToolRunner, ask, open_end
from sessions.model.errors import ConnectionFailed, FileNotFound, InvalidRequest, ProcessNotFound
from sessions.model.values import NOT_PASSED

#: exit code of a command that was ended at its timeout. Source: timeout(1)
TIMED_OUT = 124
#: maximum bytes of a request, because it is passed as one argument. Source: execve(2), MAX_ARG_STRLEN
REQUEST_MAX = 128 * 1024 - 1
#: run time in seconds from which an answer is not valid
SECONDS_MAX = 10**9


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool
    #: whether some output was left out
    truncated: bool
    #: seconds
    duration: float
    #: bytes of output that were already sent while the command ran; they are in no field
    passed_on: int = 0


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The processes beside the kernels, ordered by process id."""

    processes: list[Process]
    #: whether further processes were left out
    truncated: bool


@dataclass(frozen=True, slots=True)
class Process:
    """A running process."""

    pid: int
    command: str
    #: state of the process, one letter. Source: proc_pid_stat(5)
    state: str
    #: seconds since 1970
    started_at: float
    #: seconds of processor time
    cpu: float
    #: bytes of memory
    memory: int
    directory: str


@dataclass(frozen=True, slots=True)
class Listening:
    """A TCP port on which a process of the sandbox listens."""

    port: int
    #: the process, and the name of its program. None means that they could not be found out
    pid: int | None
    program: str | None


async def listening_ports(runner: ToolRunner) -> list[Listening]:
    """Return the ports on which the sandbox's own processes listen, in order."""
    found = (await ask(runner, PROCESSES_TOOL, {"op": "ports"})).get("ports")
    return [port for item in found if (port := _listening(item))] if isinstance(found, list) else []


def _listening(item: Any) -> Listening | None:
    match item:
        case {"port": int() as port, "pid": int() | None as pid, "process": str() | None as program}:
            return Listening(port, pid, program)
    return None


async def run_process(
    runner: ToolRunner, command: str, cwd: str, env: Mapping[str, str], seconds: float
) -> ProcessResult:
    """Run a shell command to its end. Cancelling the caller ends the command.

    Args:
        runner: session or sandbox that runs the command.
        command: command line for `/bin/sh`.
        cwd: directory in which the command starts, as processes in the sandbox write it.
        env: variables besides the sandbox's own.
        seconds: timeout in seconds.

    Raises:
        FileNotFound: when the directory does not exist.
        InvalidRequest: when the directory or the command is no text, or too long.
    """
    if NOT_PASSED.search(command):
        raise InvalidRequest("command contains a NUL or a lone surrogate", field="command")
    request = {"op": "run", "command": command, "cwd": directory_path(cwd), "env": dict(env), "timeout": seconds}
    if len(orjson.dumps(request)) > REQUEST_MAX:
        raise InvalidRequest(f"command and env may have at most {REQUEST_MAX} bytes as JSON", field="command")
    answer = await ask(runner, PROCESSES_TOOL, request, open_end())
    match answer:
        case {"error": "directory"}:
            raise FileNotFound("there is no such directory to run in")
        case {"error": _}:
            raise InvalidRequest("the command cannot be run", field="command")
        case {
            "code": int() as code,
            "stdout": str() as stdout,
            "stderr": str() as stderr,
            "timed_out": bool() as timed_out,
            "truncated": bool() as truncated,
            "seconds": int() | float() as took,
        } if 0 <= took < SECONDS_MAX:
            code = TIMED_OUT if timed_out else code
            return ProcessResult(code, _text(stdout), _text(stderr), timed_out, truncated, float(took))
    raise ConnectionFailed("the sandbox gave no valid answer")


def _text(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8", "replace")
    except ValueError:
        raise ConnectionFailed("the sandbox gave no valid answer") from None


async def list_processes(runner: ToolRunner) -> ProcessList:
    """Return the processes beside the kernels."""
    answer = await ask(runner, PROCESSES_TOOL, {"op": "list"})
    found = answer.get("processes")
    processes = [process for item in found if (process := _process(item))] if isinstance(found, list) else []
    return ProcessList(processes, answer.get(TRUNCATED) is True)


def _process(item: Any) -> Process | None:
    match item:
        case {
            "pid": int() as pid,
            "command": str() as command,
            "state": str() as state,
            "started": int() | float() as started,
            "cpu_seconds": int() | float() as cpu,
            "memory": int() as memory,
            "directory": str() as directory,
        }:
            return Process(pid, command, state, float(started), float(cpu), memory, directory)
    return None


async def find_process(runner: ToolRunner, pid: int) -> Process:
    """Return one process.

    Raises:
        ProcessNotFound: when no process has this id.
    """
    for process in (await list_processes(runner)).processes:
        if process.pid == pid:
            return process
    raise ProcessNotFound(f"there is no process {pid}")


async def kill_process(runner: ToolRunner, pid: int) -> bool:
    """End a process with SIGTERM, and with SIGKILL if SIGTERM does not end it.

    Returns:
        whether the process has ended; False if it still ran some seconds after SIGKILL.

    Raises:
        InvalidRequest: when the process may not be ended.
        ProcessNotFound: when no process has this id.
    """
    match await ask(runner, PROCESSES_TOOL, {"op": "kill", "pid": pid}):
        case {"error": "absent"}:
            raise ProcessNotFound(f"there is no process {pid}")
        case {"error": _}:
            raise InvalidRequest("this process may not be ended", field="pid")
        case {"ended": bool(ended)}:
            return ended
    raise ConnectionFailed("the sandbox gave no valid answer")


async def signal_process(runner: ToolRunner, pid: int, number: int) -> None:
    """Send a signal to a process.

    Raises:
        InvalidRequest: when the process may not get the signal.
        ProcessNotFound: when no process has this id.
    """
    match await ask(runner, PROCESSES_TOOL, {"op": "signal", "pid": pid, "signal": number}):
        case {"error": "absent"}:
            raise ProcessNotFound(f"there is no process {pid}")
        case {"error": _}:
            raise InvalidRequest("this process may not get the signal", field="pid")
