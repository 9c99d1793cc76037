"""The first process beside user code: reads one handshake, starts the kernel, passes interrupts on, reaps orphans.

Without a kernel to start it only keeps the sandbox open for tools. It ends with the process that started it, whose id
is its argument where that can end alone; a container's first process has none.

It knows no language and imports only the standard library. Run as PID 1 of a container, or by the process
backend. Source of the handshake: `sessions/backends/base.py`.
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

_PR_SET_PDEATHSIG = 1
_SIGNALLED = 128
#: descriptors of a process in the sandbox, as many as programs are used to; the gateway itself may have had more
_DESCRIPTORS = 1024
#: seconds from SIGTERM to the end. The program by which the engine sends it (`runsc kill`) has ended by then. When the
#: sandbox ends before that program, containerd 1.6 sees the program's end only after those of the sandbox's processes,
#: and most of these take it a second each.
_SENDER_LEAVES = 0.05


def main() -> int:
    """Run one kernel to its end, or hold the sandbox until a signal.

    Returns:
        the kernel's exit code, or 128 plus the signal that ended it; 0 without a kernel.
    """
    _die_with(int(sys.argv[1]) if sys.argv[1:] else os.getppid())
    handshake = json.loads(sys.stdin.buffer.readline())
    os.umask(0o077)
    _enter(handshake["workspace"], handshake["cwd"])
    _write_private(handshake["connection_file"], json.dumps(handshake["connection"]).encode())
    _silence()
    if not handshake["argv"]:
        return _hold()
    launcher = os.getpid()
    kernel = os.fork()
    if kernel == 0:
        _die_with(launcher)
        _become_kernel(handshake["argv"], handshake["env"])
    _pass_on(kernel)
    return _reap_until(kernel)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_SIGNALLED + signal.SIGKILL)  # it had ended before: the signal would never come


def _enter(workspace: str, directory: str) -> None:
    os.chdir(workspace)
    if directory:
        # What stands in the way there, the session's own code has put there: its kernels start all the same.
        with contextlib.suppress(OSError):
            os.makedirs(directory, exist_ok=True)
            os.chdir(directory)


def _write_private(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _silence() -> None:
    """What a kernel writes past its channels goes nowhere: it must not fill the host's logs."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)


def _become_kernel(argv: list[str], env: dict[str, str]) -> None:
    # A group of its own, so that an interrupt also reaches what a cell has started (`!sleep 60`).
    os.setpgid(0, 0)
    # Who is started in a shell's background ignores interrupts, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, most), most))
    env = {"PATH": os.environ.get("PATH", os.defpath), **env}  # noqa: TID251 - the image's own, not the gateway's
    try:
        os.execvpe(argv[0], argv, env)
    finally:
        os._exit(127)


def _hold() -> int:
    waited_for = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM}
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # what is ignored is never waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    while signal.sigwait(waited_for) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    time.sleep(_SENDER_LEAVES)
    return 0


def _pass_on(kernel: int) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended a moment ago; the loop below is about to see it
            os.killpg(kernel, number)

    def end(_number: int, _frame: FrameType | None) -> None:
        time.sleep(_SENDER_LEAVES)
        forward(signal.SIGKILL, None)

    signal.signal(signal.SIGINT, forward)
    signal.signal(signal.SIGTERM, end)


def _reap_until(kernel: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == kernel:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(kernel, signal.SIGKILL)  # what it has started goes with it
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNALLED - code


if __name__ == "__main__":
    sys.exit(main())
