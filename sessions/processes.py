"""Programs that are run beside kernels, in a sandbox of several sessions."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sessions.errors import ConnectionFailed, FileNotFound, InvalidRequest, ProcessNotFound
from sessions.models import NOT_PASSED
from sessions.tools import Runner, ask
from sessions.workspace import sandbox_path

#: exit code of a program that was ended because its time was over. Source: timeout(1)
TIMED_OUT = 124
#: bytes of what is asked, the command and the variables in it: it is one argument. Source: execve(2), MAX_ARG_STRLEN
REQUEST_MAX = 128 * 1024 - 1
#: seconds that no answer may claim
AGES = 10**9


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool
    #: some output was left out
    truncated: bool
    #: seconds
    duration: float


@dataclass(frozen=True, slots=True)
class Process:
    """A program that runs."""

    pid: int
    command: str
    #: one letter. Source: proc_pid_stat(5)
    state: str
    #: seconds since 1970
    started_at: float
    #: seconds of processor time
    cpu: float
    #: bytes
    memory: int
    directory: str


async def run_process(place: Runner, command: str, cwd: str, env: Mapping[str, str], seconds: float) -> ProcessResult:
    """Run a shell command to its end; leaving early ends it.

    Args:
        place: where.
        command: for `/bin/sh`.
        cwd: the directory it starts in, as programs there write it.
        env: variables besides the sandbox's own.
        seconds: how long it may take.

    Raises:
        FileNotFound: there is no such directory.
        InvalidRequest: the directory is not allowed, or the command is no text, or too long.
    """
    if NOT_PASSED.search(command):
        raise InvalidRequest("command holds a NUL or half a character", field="command")
    request = {"op": "run", "command": command, "cwd": sandbox_path(cwd), "env": dict(env), "timeout": seconds}
    if len(orjson.dumps(request)) > REQUEST_MAX:
        raise InvalidRequest(f"command and env may have {REQUEST_MAX} bytes as JSON", field="command")
    answer = await ask(place, "processes", request, _open_end())
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
        } if 0 <= took < AGES:
            code = TIMED_OUT if timed_out else code
            return ProcessResult(code, _text(stdout), _text(stderr), timed_out, truncated, float(took))
    raise ConnectionFailed("the sandbox gave no valid answer")


async def _open_end() -> AsyncIterator[bytes]:
    """Nothing, until whoever waits leaves: the tool ends what it runs when its input ends."""
    await asyncio.Event().wait()
    yield b""


def _text(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8", "replace")
    except ValueError:
        raise ConnectionFailed("the sandbox gave no valid answer") from None


async def list_processes(place: Runner) -> list[Process]:
    """What runs beside the kernels, by number."""
    found = (await ask(place, "processes", {"op": "list"})).get("processes")
    return [process for item in found if (process := _process(item))] if isinstance(found, list) else []


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


async def find_process(place: Runner, pid: int) -> Process:
    """One of them.

    Raises:
        ProcessNotFound: there is none of this number.
    """
    for process in await list_processes(place):
        if process.pid == pid:
            return process
    raise ProcessNotFound(f"there is no process {pid}")


async def kill_process(place: Runner, pid: int) -> None:
    """End a process: SIGTERM, and SIGKILL when that does not help.

    Raises:
        InvalidRequest: it may not be ended.
        ProcessNotFound: there is none of this number.
    """
    match await ask(place, "processes", {"op": "kill", "pid": pid}):
        case {"error": "absent"}:
            raise ProcessNotFound(f"there is no process {pid}")
        case {"error": _}:
            raise InvalidRequest("this process may not be ended", field="pid")
