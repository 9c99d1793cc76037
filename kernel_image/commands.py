"""Runs one command, and ends all its processes with it when it must end early.

The tool is the reaper of the command's processes (PR_SET_CHILD_SUBREAPER): a process whose parent has ended becomes the
tool's own child, also when it has left its process group and session. So all of them are found from parent to child.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from typing import IO

from kernel_image.procfs import children, descendants
from kernel_image.protocol import MARK

#: bytes kept of each of the two outputs
OUTPUT_MAX = 2 * 1024**2
#: value of `MARK`, instead of the workspace's path, for a process that only discards the output of others
DRAIN = "drain"
#: the program of such a process
DRAIN_PROGRAM = "/bin/cat"
#: seconds in which all processes of a command are killed; if processes make new ones faster than that, some go on
END = 10.0
_SIGNALLED = 128
_PR_SET_CHILD_SUBREAPER = 36


class Output(threading.Thread):
    """Reads one output until it ends and keeps its first `OUTPUT_MAX` bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """Begin to read a pipe.

        Raises:
            RuntimeError: when the limit of processes is reached: threads count, too.
        """
        super().__init__(daemon=True)
        self.kept = bytearray()
        self.truncated = False
        self._pipe = pipe
        self.start()

    def run(self) -> None:
        """Read to the end."""
        while piece := os.read(self._pipe.fileno(), 65536):
            room = OUTPUT_MAX - len(self.kept)
            self.kept += piece[:room]
            self.truncated = self.truncated or len(piece) > room

    def keep_pipe_read(self) -> None:
        """Keep the pipe read after the command's end."""
        discard(self._pipe)


def discard(pipe: IO[bytes]) -> None:
    """Have another process read a pipe: otherwise a background process would be ended by its next output."""
    with contextlib.suppress(OSError):  # the limit of processes is reached
        subprocess.Popen(  # noqa: S603 - a constant
            [DRAIN_PROGRAM],
            env={MARK: DRAIN},
            stdin=pipe,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


class Command:
    """A command and all processes that descend from it."""

    def __init__(
        self,
        argv: list[str],
        cwd: str | None,
        env: dict[str, str],
        *,
        takes_input: bool = False,
        terminal: int | None = None,
    ) -> None:
        """Start a command.

        Args:
            argv: program and arguments.
            cwd: directory to start in; None: the present one.
            env: its environment.
            takes_input: True: its standard input is a pipe; False: it is empty.
            terminal: descriptor of a terminal that is its input and output, which this call closes; None: it has pipes.

        Raises:
            OSError: when it cannot be started.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _pass_no_ignoring_on()
        output = subprocess.PIPE if terminal is None else terminal
        own = subprocess.PIPE if takes_input else subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(  # noqa: S603 - a sandbox is for running given commands
                argv,
                cwd=cwd,
                env=env,
                stdin=own if terminal is None else terminal,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=None if terminal is None else _control_terminal,  # noqa: PLW1509 - there are no threads yet
            )
        finally:
            if terminal is not None:
                os.close(terminal)
        #: set when the command itself has ended; its background processes may continue
        self.ended = threading.Event()
        self._code = 0
        self._watched = False

    @property
    def pipes(self) -> list[IO[bytes]]:
        """Its two outputs."""
        return [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe]

    @property
    def code(self) -> int:
        """Its exit code, as shells report it."""
        return self._code if self._code >= 0 else _SIGNALLED - self._code

    @property
    def returned(self) -> int:
        """Its exit code, or the negative number of the signal that has ended it."""
        return self._code

    def watch(self, on_end: Callable[[], object] | None = None) -> None:
        """Note the command's end, and clear away its processes that have ended.

        Args:
            on_end: called at the command's end, in another thread.

        Raises:
            RuntimeError: when the limit of processes is reached: threads count, too.
        """
        threading.Thread(target=self._reap, args=(on_end,), daemon=True).start()
        self._watched = True

    def _reap(self, on_end: Callable[[], object] | None) -> None:
        with contextlib.suppress(ChildProcessError):  # all processes of the command have ended
            while True:
                pid, status = os.wait()
                if pid == self.process.pid:
                    self._code = self.process.returncode = os.waitstatus_to_exitcode(status)
                    self.ended.set()
                    if on_end is not None:
                        on_end()

    def end(self) -> None:
        """Kill all processes of the command, and wait until they have ended.

        A process that forks all the time and ends its parents is gone before a look at all processes is over. Such a
        look neither finds it nor shows that it has ended. But with its parents ended, it is this process's own child.
        Own children are found at once, and the system knows whether there are any.
        """
        deadline = time.monotonic() + END
        while self._has_children() and time.monotonic() < deadline:
            for pid in children() or descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                    os.kill(pid, signal.SIGKILL)

    def _has_children(self) -> bool:
        """Return whether this process has children, ended ones included until they are cleared away."""
        keep = 0 if not self._watched else os.WNOWAIT  # else they are cleared away in another thread
        with contextlib.suppress(ChildProcessError):
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | keep) and not keep:
                pass
            return True
        return False


def _pass_no_ignoring_on() -> None:
    """Let interrupts (^C in a terminal) end commands as usual, also if the gateway is in a shell's background.

    Programs ignore these signals there, and their children inherit that. A signal with a handler has its default in
    them. The handler does nothing, so that the tool goes on as its gateway does.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def _control_terminal() -> None:
    """Make the terminal that is the standard input the one of this session. Source: ioctl_tty(2)."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
