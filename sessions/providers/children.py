"""Programs as processes of this machine: start them, read their output, and kill them with all their children."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_image.procfs import pids, status
from sessions.model.errors import StartFailed
from sessions.model.tasks import shielded, spawn

#: environment variable that marks the processes of one instance
MARK = "KERNEL_GATEWAY_LOCAL"
#: seconds to read the output that the program wrote before its end
_OUTPUT_TIMEOUT = 1.0
#: index of the process's session id (of `setsid`) in its status
_SESSION = 3
#: maximum number of searches: a later search finds processes that were created during an earlier search
_SEARCHES_MAX = 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    #: exit code of the process. A number below 0 is the negative number of the signal that ended the process.
    code: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool


async def run(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], mark: str, seconds: float, max_output: int
) -> Ended:
    """Run a program to its end, and end all processes that it has started.

    Args:
        command: program and arguments.
        cwd: working directory.
        env: complete environment without the mark.
        mark: value by which `kill` finds the processes of the program.
        seconds: time limit in seconds.
        max_output: bytes that are kept of each output stream.

    Raises:
        StartFailed: when the process could not be made.
    """
    # We make the pipes ourselves: asyncio waits for the end of its own pipes, and a child of the program may hold them.
    streams = [await Stream.open(max_output) for _ in ("stdout", "stderr")]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            env={**env, MARK: mark},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=streams[0].inlet,
            stderr=streams[1].inlet,
            start_new_session=True,
        )
    except OSError as error:
        for stream in streams:
            stream.close()
        raise StartFailed(f"the program's process could not be made: {error.strerror}") from None
    timed_out = False
    try:
        for stream in streams:
            stream.close_inlet()
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        # The caller may have been cancelled. The processes are ended in this case too.
        await shielded(spawn(_reap(process, mark, streams), "end of a program"))
    stdout, stderr = streams
    return Ended(await process.wait(), stdout.text, stderr.text, timed_out, stdout.truncated or stderr.truncated)


class Stream(asyncio.Protocol):
    """One output stream of a program, kept up to a limit."""

    def __init__(self, limit: int) -> None:
        """Start empty, with a limit in bytes."""
        self.truncated = False
        self.inlet = -1
        self.ended = asyncio.get_running_loop().create_future()
        self._kept = bytearray()
        self._limit = limit
        self._transport: asyncio.BaseTransport | None = None

    @classmethod
    async def open(cls, limit: int) -> Stream:
        """Make a stream that reads the data written to its inlet."""
        outlet, inlet = os.pipe()
        _, stream = await asyncio.get_running_loop().connect_read_pipe(lambda: cls(limit), os.fdopen(outlet, "rb", 0))
        stream.inlet = inlet
        return stream

    def close_inlet(self) -> None:
        """Close our copy of the inlet: only the program writes now."""
        os.close(self.inlet)
        self.inlet = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep the data up to the limit."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.truncated = self.truncated or len(data) > room

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        """Record the end: no process holds the inlet any more."""
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Stop reading."""
        if self.inlet >= 0:
            self.close_inlet()
        if self._transport is not None:
            self._transport.close()

    @property
    def text(self) -> str:
        """The kept output."""
        return self._kept.decode(errors="replace")


async def _reap(process: asyncio.subprocess.Process, mark: str, streams: Sequence[Stream]) -> None:
    await asyncio.to_thread(kill, mark, process.pid)
    await process.wait()
    # A process that was not found may still hold a pipe.
    await asyncio.wait([stream.ended for stream in streams], timeout=_OUTPUT_TIMEOUT)
    for stream in streams:
        stream.close()


def kill(mark: str, session: int | None = None) -> None:
    """Kill all processes that have the mark in their environment, and all processes of a session.

    A process that made its own session *and* cleared its environment is not found.
    """
    for _ in range(_SEARCHES_MAX):
        found = [pid for pid in pids() if _belongs(pid, mark.encode(), session)]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _belongs(pid: int, mark: bytes, session: int | None) -> bool:
    try:
        told = status(pid)
        if told[0] == "Z":  # the process has ended
            return False
        if session is not None and int(told[_SESSION]) == session:
            return True
        return b"%s=%s" % (MARK.encode(), mark) in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # the process is gone, or belongs to another user
        return False


def content(path: Path, limit: int) -> bytes | None:
    """Return a regular file's bytes. None means that it is missing, a link, not regular, or larger than `limit`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    told = os.fstat(file)
    if not stat.S_ISREG(told.st_mode):
        os.close(file)
        return None
    with os.fdopen(file, "rb") as opened:
        read = opened.read(limit + 1)
    return read if len(read) <= limit else None
