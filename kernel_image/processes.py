"""Programs beside user code, as its user, in its workspace (the current directory).

The only argument is JSON: `{"op": "run" | "list" | "kill" | "signal", …}`. The answer is one line of JSON; `run` prints
blanks before it as a sign that the program still runs. Standard library only.

`run` kills its command and all processes that descend from it when the time is over, and when its standard input is
closed, which means that the client has left. After a command's own end, processes in its background stay, as they do in
a terminal. A command that kills this tool first, or has another process of the sandbox start one, escapes the time.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

if __name__ == "__main__":  # in isolated mode Python looks for no modules beside a program
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.commands import DRAIN, DRAIN_PROGRAM, Command, Output
from kernel_image.procfs import booted, is_there, link, pids, status, words
from kernel_image.protocol import MARK, SANDBOX_VARIABLES, TRUNCATED
from kernel_image.spelling import named

#: seconds between two signs of life
SIGN_OF_LIFE = 10.0
#: seconds for the last output after the program's end; a background process may hold the pipe open
LAST_OUTPUT = 0.2
#: seconds from SIGTERM to SIGKILL
GRACE = 2.0
#: seconds from SIGKILL to the answer that the process is still there; on a busy machine the end takes a moment
LAST_GRACE = 10.0
#: processes of a listing, and its bytes; further ones are left out, and the gateway accepts slightly more
LIST_MAX = 1000
LIST_BYTES = 6 * 1024**2


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the operation that `argument` describes."""
    request = json.loads(argument)
    answer = {"run": _run, "list": _list, "kill": _kill, "signal": _signal}[request["op"]](request, stdin, stdout)
    stdout.write(json.dumps(answer).encode() + b"\n")
    stdout.flush()


# -- run -------------------------------------------------------------------------------------------------------


def _run(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> dict[str, Any]:
    began = time.monotonic()
    env = {**environment(), **request["env"], MARK: os.getcwd()}
    cwd = named(request["cwd"])
    ending = threading.Lock()  # held by the one that ends the command early
    try:
        command = Command(["/bin/sh", "-c", "--", request["command"]], cwd or None, env)
    except OSError as error:
        return {"error": "directory" if error.filename == cwd else "failed", "reason": str(error.strerror)}
    try:
        outputs = [Output(pipe) for pipe in command.pipes]
        command.watch()
        threading.Thread(target=_end_when_input_closes, args=(stdin, command, ending), daemon=True).start()
    except RuntimeError:  # the limit of processes is reached: threads count, too
        command.end()  # its outputs stay open: a thread may still read them
        return {"error": "failed", "reason": os.strerror(errno.EAGAIN)}
    timed_out = not _wait(command, began + request["timeout"], stdout)
    with ending:
        if timed_out:
            command.end()
    for output in outputs:
        output.join(LAST_OUTPUT)
        if output.is_alive():
            output.keep_pipe_read()
    return {
        "code": command.code,
        "timed_out": timed_out,
        "stdout": base64.b64encode(outputs[0].kept).decode(),
        "stderr": base64.b64encode(outputs[1].kept).decode(),
        "truncated": any(output.truncated for output in outputs),
        "seconds": time.monotonic() - began,
    }


def environment() -> dict[str, str]:
    """Return the environment of a program beside kernels."""
    own = os.environ  # noqa: TID251 - the image's own, not the gateway's
    return {
        "HOME": os.getcwd(),
        "LANG": "C.UTF-8",
        "PATH": own.get("PATH", os.defpath),
        "TERM": "dumb",
        **{name: own[name] for name in SANDBOX_VARIABLES if name in own},
    }


def _end_when_input_closes(stdin: BinaryIO, command: Command, ending: threading.Lock) -> None:
    while os.read(stdin.fileno(), 1):
        pass
    with ending:
        if not command.ended.is_set():  # else the answer is being sent, and background processes stay
            command.end()
        os._exit(0)


def _wait(command: Command, deadline: float, stdout: BinaryIO) -> bool:
    """Wait for a command and print a blank from time to time.

    Returns:
        True if it has ended in time.
    """
    while (left := deadline - time.monotonic()) > 0:
        if command.ended.wait(min(left, SIGN_OF_LIFE)):
            return True
        stdout.write(b" ")
        stdout.flush()
    return False


# -- list and kill ---------------------------------------------------------------------------------------------


def _list(_request: dict[str, Any], _stdin: BinaryIO, _stdout: BinaryIO) -> dict[str, Any]:
    processes: list[dict[str, Any]] = []
    size = 0
    for process in _processes():
        size += len(json.dumps(process)) + 2
        if size > LIST_BYTES or len(processes) == LIST_MAX:
            return {"processes": processes, TRUNCATED: True}
        processes.append(process)
    return {"processes": processes, TRUNCATED: False}


def _kill(request: dict[str, Any], _stdin: BinaryIO, _stdout: BinaryIO) -> dict[str, Any]:
    """Send SIGTERM to a process, then SIGKILL if it does not end."""
    pid = request["pid"]
    if not any(process["pid"] == pid for process in _processes()):
        return {"error": "absent"}
    if pid == 1:
        return {"error": "denied"}  # the launcher: the sandbox would end with it
    try:
        for number, grace in (signal.SIGTERM, GRACE), (signal.SIGKILL, LAST_GRACE):
            os.kill(pid, number)
            if _is_gone_within(grace, pid):
                return {"ended": True}
    except ProcessLookupError:
        return {"ended": True}
    except PermissionError:
        return {"error": "denied"}
    return {"ended": False}


def _signal(request: dict[str, Any], _stdin: BinaryIO, _stdout: BinaryIO) -> dict[str, Any]:
    """Send a signal to a process."""
    try:
        os.kill(request["pid"], request["signal"])
    except ProcessLookupError:
        return {"error": "absent"}
    except PermissionError:
        return {"error": "denied"}
    return {}


def _is_gone_within(seconds: float, pid: int) -> bool:
    """Wait until a process has ended."""
    deadline = time.monotonic() + seconds
    while is_there(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _processes() -> Iterator[dict[str, Any]]:
    """Yield the sandbox's processes except this one, ordered by number."""
    in_sandbox, started = _in_sandbox(), booted()
    for pid in pids():
        try:
            if pid != os.getpid() and not _is_drain(pid) and (in_sandbox or _mark(pid) == os.getcwd()):
                yield _process(pid, started)
        except OSError:
            continue  # ended meanwhile, or another user's


def _in_sandbox() -> bool:
    """Return whether this is a sandbox, where all visible processes belong to it, and not a developer's machine."""
    return any(part.endswith("/launcher.py") for part in words(1, "cmdline"))


def _is_drain(pid: int) -> bool:
    """Return whether a process only discards output. A process cannot claim it: the program's path is no claim."""
    return _mark(pid) == DRAIN and link(pid, "exe") == os.path.realpath(DRAIN_PROGRAM)


def _mark(pid: int) -> str:
    """Return the value of `MARK` in a process's environment; empty when `run` has not started the process."""
    with contextlib.suppress(PermissionError):
        for word in words(pid, "environ"):
            if word.startswith(f"{MARK}="):
                return word.removeprefix(f"{MARK}=")
    return ""


def _process(pid: int, booted_at: int) -> dict[str, Any]:
    fields = status(pid)
    return {
        "pid": pid,
        "command": " ".join(words(pid, "cmdline"))[:1000],
        "state": fields[0],
        "started": booted_at + int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "memory": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        "directory": link(pid, "cwd"),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
