"""The first process of a sandbox: it reads a handshake, starts the kernel, passes interrupts on, and reaps orphans.

If there is no kernel to start, the launcher only keeps the sandbox open for tools. A handshake without keys starts a
kernel ahead of need, which imports its modules and waits; the gateway then takes a checkpoint of the sandbox. A later
sandbox is restored from that checkpoint, gets a second handshake, and completes the kernel.

The launcher runs as PID 1 of a container, or as a child of the process backend. The process backend passes its process
id as the argument, and the launcher ends together with that process. In a container there is no argument.

The launcher knows no language and imports only the standard library. Source of the handshake:
`sessions/backends/base.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from types import FrameType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # importing it would take ten milliseconds of each start

_PR_SET_PDEATHSIG = 1
_SIGNALLED = 128
#: directory of the image with files for a kernel's private directory; the process backend has no such directory
_FURNITURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "home")
#: limit of open files per process in the sandbox, as programs expect it; the gateway's own limit may be higher
_DESCRIPTORS = 1024
#: seconds between SIGTERM and the launcher's end. Meanwhile the program that the engine sends the signal with
#: (`runsc kill`) ends. If the sandbox ended before that program, containerd 1.6 would notice the program's end only
#: after the ends of the sandbox's processes, and would spend a second on most of them.
_DELAY_BEFORE_END = 0.05
_PASSED_ON = {signal.SIGINT, signal.SIGTERM}


def main() -> int:
    """Run one kernel until it ends, or keep the sandbox open until a signal arrives.

    Returns:
        the kernel's exit code, or 128 plus the signal that has ended it. Without a kernel, 0.
    """
    _die_with(int(sys.argv[1]) if sys.argv[1:] else os.getppid())
    handshake = _read_handshake()
    os.umask(0o077)
    if handshake["connection"] is None:
        return _reap_until(_complete(*_start_ahead(handshake)))
    _enter(handshake["workspace"], handshake["cwd"])
    _write_private(handshake["connection_file"], json.dumps(handshake["connection"]).encode())
    _furnish(handshake["home"])
    _silence()
    if not handshake["argv"]:
        return _hold()
    return _reap_until(_fork_kernel(handshake["argv"], handshake["env"]))


def _read_handshake() -> dict[str, Any]:
    handshake: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    return handshake


def _fork_kernel(argv: list[str], env: dict[str, str]) -> int:
    launcher = os.getpid()
    # Signals are blocked until there is a kernel that can get them. A blocked signal waits even if this process ignores
    # it, like a process that was started in a shell's background.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    kernel = os.fork()
    if kernel == 0:
        _die_with(launcher)
        _become_kernel(argv, env)
    with contextlib.suppress(OSError):  # parent and child both do this, because either of them may run first
        os.setpgid(kernel, kernel)
    _forward_signals(kernel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    return kernel


def _start_ahead(handshake: dict[str, Any]) -> tuple[int, int]:
    """Start a kernel that waits for its keys, and copy the kernel's first line to standard output.

    Returns:
        the process id of the kernel, and the launcher's end of the connection to the kernel's standard input.
    """
    import socket  # noqa: PLC0415 - most starts need no sockets

    os.chdir(handshake["workspace"])
    _furnish(handshake["home"])
    own, kernels = (end.detach() for end in socket.socketpair())
    gateways = [os.dup(descriptor) for descriptor in range(3)]
    _silence()
    os.dup2(kernels, 0)
    os.close(kernels)
    kernel = _fork_kernel(handshake["argv"], handshake["env"])
    for number, descriptor in enumerate(gateways):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.write(own, json.dumps(handshake).encode() + b"\n")
    first = _read_line(own)
    if not first:
        sys.exit("the kernel ended before it waited")
    os.write(1, first)
    return kernel, own


def _complete(kernel: int, connection: int) -> int:
    """Pass a second handshake to a waiting kernel, and copy the kernel's answer to standard output when it serves.

    Returns:
        the process id of the kernel.
    """
    handshake = _read_handshake()
    _limit(handshake["limits"])
    _write_private(handshake["connection_file"], json.dumps(handshake["connection"]).encode())
    os.write(connection, json.dumps(handshake).encode() + b"\n")
    serves = _read_line(connection)
    os.close(connection)
    os.write(1, serves)
    _silence()
    return kernel


def _read_line(connection: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (piece := os.read(connection, 65536)):
        line += piece
    return line


def _limit(limits: dict[str, int]) -> None:
    """Lower this process's limits, because the checkpoint contains the limits of the sandbox where it was taken."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_SIGNALLED + signal.SIGKILL)  # the parent had ended before, so its signal would never arrive


def _enter(workspace: str, directory: str) -> None:
    os.chdir(workspace)
    if directory:
        # If the session's own code has made something else at this path, the kernel starts in the workspace.
        with contextlib.suppress(OSError):
            os.makedirs(directory, exist_ok=True)
            os.chdir(directory)


def _write_private(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _furnish(home: str) -> None:
    """Make links in the kernel's private directory to the image's files for it: caches that take long to make."""
    for directory, _, files in os.walk(_FURNITURE):
        below = os.path.join(home, os.path.relpath(directory, _FURNITURE))
        os.makedirs(below, exist_ok=True)
        for file in files:
            with contextlib.suppress(FileExistsError):
                os.symlink(os.path.join(directory, file), os.path.join(below, file))


def _silence() -> None:
    """Discard the output that a kernel writes outside its channels, because it could fill the host's logs."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)


def _become_kernel(argv: list[str], env: dict[str, str]) -> None:
    # The kernel has its own process group, so that an interrupt also reaches processes of cells (`!sleep 60`).
    os.setpgid(0, 0)
    # A process in a shell's background ignores interrupts, and its children inherit that. A kernel must not.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, most), most))
    env = {"PATH": os.environ.get("PATH", os.defpath), **env}  # noqa: TID251 - the image's own, not the gateway's
    try:
        os.execvpe(argv[0], argv, env)
    finally:
        os._exit(127)


def _hold() -> int:
    waited_for = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM}
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # sigwait never returns an ignored signal
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    while signal.sigwait(waited_for) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    time.sleep(_DELAY_BEFORE_END)
    return 0


def _forward_signals(kernel: int) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # the kernel has just ended, and `_reap_until` will notice that
            os.killpg(kernel, number)

    def end(_number: int, _frame: FrameType | None) -> None:
        time.sleep(_DELAY_BEFORE_END)
        forward(signal.SIGKILL, None)

    signal.signal(signal.SIGINT, forward)
    signal.signal(signal.SIGTERM, end)


def _reap_until(kernel: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == kernel:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(kernel, signal.SIGKILL)  # the kernel's children end with it
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNALLED - code


if __name__ == "__main__":
    sys.exit(main())
