"""Runs one command, and ends all its processes with it when it must end early.

The tool is the reaper of the command's processes (PR_SET_CHILD_SUBREAPER): a process whose parent has ended becomes the
tool's own child, also when it has left its process group and session. So all of them are found from parent to child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from typing import IO

from kernel_image.procfs import descendants
from kernel_image.protocol import MARK

#: bytes kept of each of the two outputs
OUTPUT_MAX = 2 * 1024**2
#: value of `MARK`, instead of the workspace's path, for a process that only discards the output of others
DRAIN = "drain"
#: the program of such a process
DRAIN_PROGRAM = "/bin/cat"
#: seconds in which all processes of a command are killed; processes that make new ones faster than that continue
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
        """Keep the pipe read: otherwise a background process would be ended by its next output."""
        with contextlib.suppress(OSError):  # the limit of processes is reached
            subprocess.Popen(  # noqa: S603 - a constant
                [DRAIN_PROGRAM],
                env={MARK: DRAIN},
                stdin=self._pipe,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


class Command:
    """A shell command and all processes that descend from it."""

    def __init__(self, command: str, cwd: str | None, env: dict[str, str]) -> None:
        """Start a command.

        Raises:
            OSError: when it cannot be started.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.process = subprocess.Popen(  # noqa: S603 - a sandbox is for running given commands
            ["/bin/sh", "-c", "--", command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        #: set when the command itself has ended; its background processes may continue
        self.ended = threading.Event()
        self._code = 0

    @property
    def pipes(self) -> list[IO[bytes]]:
        """Its two outputs."""
        return [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe]

    @property
    def code(self) -> int:
        """Its exit code, as shells report it."""
        return self._code if self._code >= 0 else _SIGNALLED - self._code

    def watch(self) -> None:
        """Note the command's end, and clear away its processes that have ended.

        Raises:
            RuntimeError: when the limit of processes is reached: threads count, too.
        """
        threading.Thread(target=self._reap, daemon=True).start()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # all processes of the command have ended
            while True:
                pid, status = os.wait()
                if pid == self.process.pid:
                    self._code = self.process.returncode = os.waitstatus_to_exitcode(status)
                    self.ended.set()

    def end(self) -> None:
        """Kill all processes of the command, and wait until they have ended."""
        deadline = time.monotonic() + END
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                    os.kill(pid, signal.SIGKILL)
