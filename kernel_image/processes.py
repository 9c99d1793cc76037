"""Runs commands and lists and ends processes, with the same user as user code. The current directory is its workspace.

The only argument is JSON: `{"op": "run" | "list" | "kill" | "signal" | "ports", …}`. The answer is one line of JSON.
`run` prints spaces before it as keep-alives. Standard library only.

`run` kills its command and all descendants at the timeout, and when its standard input is closed, which means that the
client has left. If a command ends by itself, its background processes continue, as in a terminal. A command can escape
the timeout: it can kill this tool first, or let another process of the sandbox start a process.
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

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.commands import DRAIN, DRAIN_PROGRAM, Command, Output
from kernel_image.file_names import name_of
from kernel_image.procfs import PARENT, boot_time, is_running, link, pids, program, status, words
from kernel_image.protocol import KEEPALIVE, MARK, SANDBOX_VARIABLES, TOOLBOX, TRUNCATED

#: maximum seconds for the last output after the program's end; a background process may hold the pipe open
LAST_OUTPUT = 0.2
#: seconds between SIGTERM and SIGKILL
GRACE = 2.0
#: seconds after SIGKILL until the answer says that the process has not ended; a busy machine needs some time
LAST_GRACE = 10.0
#: maximum processes and bytes of a listing; further processes are left out. The gateway accepts slightly more bytes
LIST_MAX = 1000
LIST_BYTES = 6 * 1024**2
#: state of a socket that listens, in /proc/net/tcp
LISTENING = "0A"


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the operation that the JSON text `argument` describes."""
    request = json.loads(argument)
    operations = {"run": _run, "list": _list, "kill": _kill, "signal": _signal, "ports": _ports}
    answer = operations[request["op"]](request, stdin, stdout)
    stdout.write(json.dumps(answer).encode() + b"\n")
    stdout.flush()


# -- run -------------------------------------------------------------------------------------------------------


def _run(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> dict[str, Any]:
    began = time.monotonic()
    env = {**environment(), **request["env"], MARK: os.getcwd()}
    cwd = name_of(request["cwd"])
    ending = threading.Lock()  # held by the thread that ends the command early
    try:
        command = Command(["/bin/sh", "-c", "--", request["command"]], cwd or None, env)
    except OSError as error:
        return {"error": "directory" if error.filename == cwd else "failed", "reason": str(error.strerror)}
    try:
        outputs = [Output(pipe) for pipe in command.pipes]
        command.watch()
        threading.Thread(target=_end_when_input_closes, args=(stdin, command, ending), daemon=True).start()
    except RuntimeError:  # the limit of processes is reached; threads count as processes
        command.end()  # the outputs stay open, because a thread may still read them
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
    """Return the environment of a command that is not a kernel."""
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
        if (
            not command.ended.is_set()
        ):  # after the command's end the answer is being sent, and background processes continue
            command.end()
        os._exit(0)


def _wait(command: Command, deadline: float, stdout: BinaryIO) -> bool:
    """Wait for the end of a command, and print a space from time to time.

    Returns:
        True if the command has ended before the deadline, a monotonic time.
    """
    while (left := deadline - time.monotonic()) > 0:
        if command.ended.wait(min(left, KEEPALIVE)):
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
        return {"error": "denied"}  # the launcher: the sandbox would end, too
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
    """Wait at most `seconds` for the end of a process. Return whether it has ended."""
    deadline = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# -- ports -----------------------------------------------------------------------------------------------------


def _ports(_request: dict[str, Any], _stdin: BinaryIO, _stdout: BinaryIO) -> dict[str, Any]:
    """Return the TCP ports on which the sandbox's processes listen. Source: proc(5), /proc/net/tcp."""
    sockets = _sockets()
    found: dict[int, dict[str, Any]] = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(file) as lines:
            for fields in (line.split() for line in lines):
                if fields[3] != LISTENING:
                    continue
                port, (pid, name) = int(fields[1].rpartition(":")[2], 16), sockets.get(fields[9], (None, None))
                if pid is not None or _in_sandbox():  # elsewhere it may be another program of the machine
                    found.setdefault(port, {"port": port, "pid": pid, "process": name})
    return {"ports": [found[port] for port in sorted(found)][:LIST_MAX]}


def _sockets() -> dict[str, tuple[int, str]]:
    """Return the process that has each socket open, by the socket's number."""
    owners: dict[str, tuple[int, str]] = {}
    for process in _processes():
        pid = process["pid"]
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                kind, _, number = link(pid, f"fd/{descriptor}").partition(":[")
                if kind == "socket":
                    owners[number.rstrip("]")] = (pid, program(pid))
    return owners


def _processes() -> Iterator[dict[str, Any]]:
    """Yield the sandbox's processes, except the gateway's tools, in the order of their ids."""
    in_sandbox, started, toolbox = _in_sandbox(), boot_time(), _toolbox()
    for pid in pids():
        try:
            if pid in {os.getpid(), toolbox} or _is_drain(pid) or not (in_sandbox or _mark(pid) == os.getcwd()):
                continue
            fields = status(pid)
            if int(fields[PARENT]) != toolbox:
                yield _process(pid, fields, started)
        except OSError:
            continue  # ended meanwhile, or another user's


def _toolbox() -> int | None:
    """Return the process that has forked this one and the other tools. None if this tool was started by itself."""
    with contextlib.suppress(OSError):  # it has just ended
        if any(part.endswith(f"/{TOOLBOX}.py") for part in words(os.getppid(), "cmdline")):
            return os.getppid()
    return None


def _in_sandbox() -> bool:
    """Return whether this is a sandbox, whose visible processes all belong to it. A developer's machine is not one."""
    return any(part.endswith("/launcher.py") for part in words(1, "cmdline"))


def _is_drain(pid: int) -> bool:
    """Return whether a process only discards output. User code cannot fake this: the path of the program is checked."""
    return _mark(pid) == DRAIN and link(pid, "exe") == os.path.realpath(DRAIN_PROGRAM)


def _mark(pid: int) -> str:
    """Return the value of `MARK` in a process's environment, or an empty text if `run` has not started the process."""
    with contextlib.suppress(PermissionError):
        for word in words(pid, "environ"):
            if word.startswith(f"{MARK}="):
                return word.removeprefix(f"{MARK}=")
    return ""


def _process(pid: int, fields: list[str], booted_at: int) -> dict[str, Any]:
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
