"""Programs beside user code, as its user, in its workspace (the current directory).

The only argument is JSON: `{"op": "run" | "list" | "kill", …}`. The answer is one line of JSON; `run` prints blanks
before it as a sign that the program still runs. Standard library only.

`run` kills its command and the command's processes when the time is over, and when its standard input is closed, which
means that the client has left. After a command's own end, processes in its background stay, as they do in a terminal.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

#: bytes kept of each of the two outputs
OUTPUT_MAX = 2 * 1024**2
#: seconds between two signs of life
SIGN_OF_LIFE = 10.0
#: seconds for the last output after the program's end; a background process may hold the pipe open
LAST_OUTPUT = 0.2
#: seconds from SIGTERM to SIGKILL
GRACE = 2.0
#: variable in the environment of all processes that `run` starts
MARK = "KERNEL_GATEWAY_PROCESS"
#: its value, instead of the workspace's path, for a process that only discards the output of others
DRAIN = "drain"
_SIGNALLED = 128
#: process states of the operating system that mean that a process has ended
GONE = {"Z", "X"}


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the operation that `argument` describes."""
    request = json.loads(argument)
    answer = {"run": _run, "list": _list, "kill": _kill}[request["op"]](request, stdin, stdout)
    stdout.write(json.dumps(answer).encode() + b"\n")
    stdout.flush()


# -- run -------------------------------------------------------------------------------------------------------


class _Output(threading.Thread):
    """Reads one output until it ends and keeps its first `OUTPUT_MAX` bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.kept = bytearray()
        self.truncated = False
        self._pipe = pipe
        self.start()

    def run(self) -> None:
        while piece := os.read(self._pipe.fileno(), 65536):
            room = OUTPUT_MAX - len(self.kept)
            self.kept += piece[:room]
            self.truncated = self.truncated or len(piece) > room

    def keep_pipe_read(self) -> None:
        """Keep the pipe read: otherwise a background process would be ended by its next output."""
        with contextlib.suppress(OSError):  # the limit of processes is reached
            subprocess.Popen(
                ["/bin/cat"],
                env={MARK: DRAIN},
                stdin=self._pipe,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def _run(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> dict[str, Any]:
    began = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 - a sandbox is for running given commands
            ["/bin/sh", "-c", "--", request["command"]],
            cwd=request["cwd"] or None,
            env={**_environment(), **request["env"], MARK: os.getcwd()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return {"error": "directory" if error.filename == request["cwd"] else "failed", "reason": str(error.strerror)}
    try:
        outputs = [_Output(pipe) for pipe in (process.stdout, process.stderr) if pipe]
        threading.Thread(target=_end_when_input_closes, args=(stdin, process), daemon=True).start()
    except RuntimeError:  # the limit of processes is reached: threads count, too
        _end(process)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        return {"error": "failed", "reason": os.strerror(errno.EAGAIN)}
    timed_out = not _wait(process, began + request["timeout"], stdout)
    if timed_out:
        _end(process)
    for output in outputs:
        output.join(LAST_OUTPUT)
        if output.is_alive():
            output.keep_pipe_read()
    return {
        "code": process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode,
        "timed_out": timed_out,
        "stdout": base64.b64encode(outputs[0].kept).decode(),
        "stderr": base64.b64encode(outputs[1].kept).decode(),
        "truncated": any(output.truncated for output in outputs),
        "seconds": time.monotonic() - began,
    }


def _environment() -> dict[str, str]:
    own = os.environ  # noqa: TID251 - the image's own, not the gateway's
    return {
        "HOME": own.get("HOME", os.getcwd()),
        "LANG": "C.UTF-8",
        "PATH": own.get("PATH", os.defpath),
        "TERM": "dumb",
    }


def _end_when_input_closes(stdin: BinaryIO, process: subprocess.Popen[bytes]) -> None:
    while os.read(stdin.fileno(), 1):
        pass
    if process.returncode is None:  # else the answer is being sent, and background processes stay
        _end(process)
    os._exit(0)


def _wait(process: subprocess.Popen[bytes], deadline: float, stdout: BinaryIO) -> bool:
    """Wait for a program and print a blank from time to time.

    Returns:
        True if it has ended in time.
    """
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(left, SIGN_OF_LIFE))
            return True
        stdout.write(b" ")
        stdout.flush()
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- list and kill ---------------------------------------------------------------------------------------------


def _list(_request: dict[str, Any], _stdin: BinaryIO, _stdout: BinaryIO) -> dict[str, Any]:
    return {"processes": list(_processes())}


def _kill(request: dict[str, Any], _stdin: BinaryIO, _stdout: BinaryIO) -> dict[str, Any]:
    """Send SIGTERM to a process, then SIGKILL if it does not end."""
    pid = request["pid"]
    if not any(process["pid"] == pid for process in _processes()):
        return {"error": "absent"}
    if pid == 1:
        return {"error": "denied"}  # the launcher: the sandbox would end with it
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.kill(pid, number)
            if _is_gone_within(GRACE, pid):
                break
    except ProcessLookupError:
        pass  # the process has ended, as requested
    except PermissionError:
        return {"error": "denied"}
    return {}


def _is_gone_within(seconds: float, pid: int) -> bool:
    """Wait until a process has ended; on a busy machine even a killed one takes a moment."""
    deadline = time.monotonic() + seconds
    while _is_there(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_there(pid: int) -> bool:
    try:
        return status(pid)[0] not in GONE
    except OSError:
        return False


def _processes() -> Iterator[dict[str, Any]]:
    """Yield the sandbox's processes except this one, ordered by number."""
    wanted = {os.getcwd(), ""} if _in_sandbox() else {os.getcwd()}
    booted = _booted()
    for pid in pids():
        try:
            if pid != os.getpid() and _mark(pid) in wanted:
                yield _process(pid, booted)
        except OSError:
            continue  # ended meanwhile, or another user's


def _in_sandbox() -> bool:
    """Return whether this is a sandbox, where all visible processes belong to it, and not a developer's machine."""
    return any(part.endswith("/launcher.py") for part in _words(1, "cmdline"))


def _mark(pid: int) -> str:
    """Return the value of `MARK` in a process's environment; empty when `run` has not started the process."""
    with contextlib.suppress(PermissionError):
        for word in _words(pid, "environ"):
            if word.startswith(f"{MARK}="):
                return word.removeprefix(f"{MARK}=")
    return ""


def _words(pid: int, file: str) -> list[str]:
    with open(f"/proc/{pid}/{file}", "rb") as words:
        return [word.decode("utf-8", "replace") for word in words.read(65536).split(b"\0") if word]


def pids() -> list[int]:
    """Return the numbers of all visible processes, in order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def status(pid: int) -> list[str]:
    """Return the status fields of a process, beginning with its state. Source: proc_pid_stat(5).

    Raises:
        OSError: when the process has ended.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def _process(pid: int, booted: int) -> dict[str, Any]:
    fields = status(pid)
    return {
        "pid": pid,
        "command": " ".join(_words(pid, "cmdline"))[:1000],
        "state": fields[0],
        "started": booted + int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "memory": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        "directory": _directory(pid),
    }


def _booted() -> int:
    """Return the time of the machine's start in seconds since 1970, the same at every call. Source: proc_stat(5)."""
    with open("/proc/stat", encoding="ascii") as stat:
        return next(int(line.split()[1]) for line in stat if line.startswith("btime "))


def _directory(pid: int) -> str:
    try:
        return os.fsencode(os.readlink(f"/proc/{pid}/cwd")).decode("utf-8", "replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
