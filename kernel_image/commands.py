"""Runs one command, and can kill it together with all its descendants.

The tool is the subreaper of the command's processes (PR_SET_CHILD_SUBREAPER): a process whose parent has ended becomes
a child of the tool, even if the process has left its process group and session. So the tool finds all descendants.
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

#: maximum bytes that are kept of each of the two outputs
OUTPUT_MAX = 2 * 1024**2
#: value of `MARK` for a process that only discards the output of others; otherwise the value is the workspace's path
DRAIN = "drain"
#: the program that discards output
DRAIN_PROGRAM = "/bin/cat"
#: maximum seconds for killing all processes of a command. Processes that fork faster than they are killed may survive
END = 10.0
_SIGNALLED = 128
_PR_SET_CHILD_SUBREAPER = 36


class Output(threading.Thread):
    """Reads one output until its end, and keeps its first `OUTPUT_MAX` bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """Start to read a pipe.

        Raises:
            RuntimeError: when the limit of processes is reached; threads count as processes.
        """
        super().__init__(daemon=True)
        self.kept = bytearray()
        self.truncated = False
        self._pipe = pipe
        self.start()

    def run(self) -> None:
        """Read until the end of the pipe."""
        while piece := os.read(self._pipe.fileno(), 65536):
            room = OUTPUT_MAX - len(self.kept)
            self.kept += piece[:room]
            self.truncated = self.truncated or len(piece) > room

    def keep_pipe_read(self) -> None:
        """Let another process read the pipe after the command's end; see `discard`."""
        discard(self._pipe)


def discard(pipe: IO[bytes]) -> None:
    """Start a process that reads and discards a pipe, because a broken pipe would end background processes."""
    with contextlib.suppress(OSError):  # the limit of processes is reached
        subprocess.Popen(  # noqa: S603 - the program is a constant
            [DRAIN_PROGRAM],
            env={MARK: DRAIN},
            stdin=pipe,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


class Command:
    """A command and all its descendants."""

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
            cwd: working directory. None means that of this process.
            env: environment of the command.
            takes_input: True if the standard input is a pipe; otherwise it is empty.
            terminal: descriptor of a terminal for input and output, which this call closes. None means pipes.

        Raises:
            OSError: when the command cannot be started.
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
        """The pipes of standard output and standard error; none with a terminal."""
        return [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe]

    @property
    def code(self) -> int:
        """The exit code as shells report it: 128 plus the signal for a command that a signal has ended."""
        return self._code if self._code >= 0 else _SIGNALLED - self._code

    @property
    def returned(self) -> int:
        """The exit code, or the negative number of the signal that has ended the command."""
        return self._code

    def watch(self, on_end: Callable[[], object] | None = None) -> None:
        """Start a thread that records the command's end and reaps its processes.

        Args:
            on_end: called in that thread when the command has ended. None means that nothing is called.

        Raises:
            RuntimeError: when the limit of processes is reached; threads count as processes.
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

        A process that forks continuously and ends the parent each time may have ended before a scan of all processes
        reaches it, so a scan can miss its newest child. But a process whose parent has ended is a child of this
        process. The list of own children is short, and the system knows whether there are any left.
        """
        deadline = time.monotonic() + END
        while self._has_children() and time.monotonic() < deadline:
            for pid in children() or descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                    os.kill(pid, signal.SIGKILL)

    def _has_children(self) -> bool:
        """Return whether this process has children, also ended children that are not reaped yet."""
        keep = 0 if not self._watched else os.WNOWAIT  # the other thread reaps them, if there is one
        with contextlib.suppress(ChildProcessError):
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | keep) and not keep:
                pass
            return True
        return False


def _pass_no_ignoring_on() -> None:
    """Let interrupts (^C in a terminal) end commands, even if the gateway was started in a shell's background.

    There, programs ignore these signals, and their children inherit that. If a signal has a handler instead, children
    get the default action. The handler here does nothing, so that the signals still do not end this tool.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def _control_terminal() -> None:
    """Make the terminal at the standard input the controlling terminal of this session. Source: ioctl_tty(2)."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
