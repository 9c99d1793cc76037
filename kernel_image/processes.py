"""Programs beside user code, as its user, in its workspace (the current directory).

One JSON argument in, `{"op": "run" | "list" | "kill", …}`; out comes one line of JSON, for `run` after blanks that
tell that it goes on. Standard library only.

`run` ends with what it has started: when the time is over, and when its standard input is closed, which is how a
client leaves. What a shell has put into the background stays, as it does in a terminal.
"""

from __future__ import annotations

import base64
import contextlib
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
#: seconds for the last output after the program's end; what stays in the background may hold it open
LAST_OUTPUT = 0.2
#: seconds from the request to end to the end by force
GRACE = 2.0
#: in the environment of all that `run` starts
MARK = "KERNEL_GATEWAY_PROCESS"
#: what it says, instead of the sandbox's workspace, of one that only takes what others say
DRAIN = "drain"
_SIGNALLED = 128
#: the states of the kernel in which a process is no more
GONE = {"Z", "X"}


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Do one operation."""
    request = json.loads(argument)
    answer = {"run": _run, "list": _list, "kill": _kill}[request["op"]](request, stdin, stdout)
    stdout.write(json.dumps(answer).encode() + b"\n")
    stdout.flush()


# -- run -------------------------------------------------------------------------------------------------------


class _Output(threading.Thread):
    """Reads one output to its end and keeps its beginning."""

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

    def hand_over(self) -> None:
        """What stays in the background would be ended by its next word if nobody took it."""
        with contextlib.suppress(OSError):  # as many processes as there may be
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
        process = subprocess.Popen(  # noqa: S603 - running what it is told is what a sandbox is for
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
    outputs = [_Output(pipe) for pipe in (process.stdout, process.stderr) if pipe]
    threading.Thread(target=_leave_with, args=(stdin, process), daemon=True).start()
    timed_out = not _wait(process, began + request["timeout"], stdout)
    if timed_out:
        _end(process)
    for output in outputs:
        output.join(LAST_OUTPUT)
        if output.is_alive():
            output.hand_over()
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


def _leave_with(stdin: BinaryIO, process: subprocess.Popen[bytes]) -> None:
    while os.read(stdin.fileno(), 1):
        pass
    if process.returncode is None:  # else the answer is on its way, and what is in the background stays
        _end(process)
    os._exit(0)


def _wait(process: subprocess.Popen[bytes], deadline: float, stdout: BinaryIO) -> bool:
    """Wait for a program and say so from time to time.

    Returns:
        whether it has ended in time.
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
    """Ask a process to end, then end it."""
    pid = request["pid"]
    if not any(process["pid"] == pid for process in _processes()):
        return {"error": "absent"}
    if pid == 1:
        return {"error": "denied"}  # the launcher, with which the sandbox would end
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.kill(pid, number)
            if _is_gone_within(GRACE, pid):
                break
    except ProcessLookupError:
        pass  # that is what was asked for
    except PermissionError:
        return {"error": "denied"}
    return {}


def _is_gone_within(seconds: float, pid: int) -> bool:
    """Wait for the end of a process, which takes a moment on a busy machine, also when it was killed."""
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
    """The sandbox's processes but this one, by number."""
    wanted = {os.getcwd(), ""} if _alone() else {os.getcwd()}
    booted = _booted()
    for pid in pids():
        try:
            if pid != os.getpid() and _mark(pid) in wanted:
                yield _process(pid, booted)
        except OSError:
            continue  # gone meanwhile, or not this user's


def _alone() -> bool:
    """Whether this is a sandbox, where all that can be seen belongs to it, and not the machine of a developer."""
    return any(part.endswith("/launcher.py") for part in _words(1, "cmdline"))


def _mark(pid: int) -> str:
    """What the environment of a process says of it; empty when `run` has not started it."""
    with contextlib.suppress(PermissionError):
        for word in _words(pid, "environ"):
            if word.startswith(f"{MARK}="):
                return word.removeprefix(f"{MARK}=")
    return ""


def _words(pid: int, file: str) -> list[str]:
    with open(f"/proc/{pid}/{file}", "rb") as words:
        return [word.decode("utf-8", "replace") for word in words.read(65536).split(b"\0") if word]


def pids() -> list[int]:
    """All processes that can be seen, in order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def status(pid: int) -> list[str]:
    """The fields of a process from its state on. Source: proc_pid_stat(5).

    Raises:
        OSError: it is gone.
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
    """When the machine was started, in seconds since 1970, the same at every look. Source: proc_stat(5)."""
    with open("/proc/stat", encoding="ascii") as stat:
        return next(int(line.split()[1]) for line in stat if line.startswith("btime "))


def _directory(pid: int) -> str:
    try:
        return os.fsencode(os.readlink(f"/proc/{pid}/cwd")).decode("utf-8", "replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
