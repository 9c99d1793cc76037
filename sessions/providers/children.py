"""Programs as processes of this machine: started, read, and killed with whatever they have started."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_image.processes import pids, status
from sessions.errors import StartFailed
from sessions.tasks import spawn, to_the_end

#: tells in a process's environment to whom it belongs
MARK = "KERNEL_GATEWAY_LOCAL"
#: seconds within which what was written before the end is read
_LAST_WORDS = 1.0
#: place of the session's id in a process's status
_SESSION = 3
#: how often is looked for processes that were just being made
_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    #: as the system tells it: below 0 the signal that has ended it
    code: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool


async def run(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], mark: str, seconds: float, max_output: int
) -> Ended:
    """Run a program to its end, which is that of all that it has started too.

    Args:
        command: what runs.
        cwd: where.
        env: all of its environment but for the mark.
        mark: by which `kill` finds what belongs to it.
        seconds: that it may run.
        max_output: bytes that are kept of each of its streams.

    Raises:
        StartFailed: the process could not be made.
    """
    # Pipes of our own: asyncio counts a process as ended only when nobody has its pipes any more.
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
            stream.handed_over()
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        # Whoever waits may have been cancelled; nothing is left all the same.
        await to_the_end(spawn(_bury(process, mark, streams), "end of a program"))
    stdout, stderr = streams
    return Ended(await process.wait(), stdout.text, stderr.text, timed_out, stdout.truncated or stderr.truncated)


class Stream(asyncio.Protocol):
    """What a program writes, as much of it as is kept."""

    def __init__(self, limit: int) -> None:
        """Empty."""
        self.truncated = False
        self.inlet = -1
        self.ended = asyncio.get_running_loop().create_future()
        self._kept = bytearray()
        self._limit = limit
        self._transport: asyncio.BaseTransport | None = None

    @classmethod
    async def open(cls, limit: int) -> Stream:
        """One that reads what is written to its inlet."""
        outlet, inlet = os.pipe()
        _, stream = await asyncio.get_running_loop().connect_read_pipe(lambda: cls(limit), os.fdopen(outlet, "rb", 0))
        stream.inlet = inlet
        return stream

    def handed_over(self) -> None:
        """Only the program writes now."""
        os.close(self.inlet)
        self.inlet = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reading has begun."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep it, if there is room."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.truncated = self.truncated or len(data) > room

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        """Nobody can write any more."""
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Read no more."""
        if self.inlet >= 0:
            self.handed_over()
        if self._transport is not None:
            self._transport.close()

    @property
    def text(self) -> str:
        """All that is kept."""
        return self._kept.decode(errors="replace")


async def _bury(process: asyncio.subprocess.Process, mark: str, streams: Sequence[Stream]) -> None:
    await asyncio.to_thread(kill, mark, process.pid)
    await process.wait()
    # Whoever was not found may still have a pipe.
    await asyncio.wait([stream.ended for stream in streams], timeout=_LAST_WORDS)
    for stream in streams:
        stream.close()


def kill(mark: str, session: int | None = None) -> None:
    """End all processes that have the mark, and all of a session: those that have cleared their environment, too.

    One that has made a session of its own *and* cleared its environment is not found.
    """
    for _ in range(_LOOKS):
        found = [pid for pid in pids() if _belongs(pid, mark.encode(), session)]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _belongs(pid: int, mark: bytes, session: int | None) -> bool:
    try:
        told = status(pid)
        if told[0] == "Z":  # has ended
            return False
        if session is not None and int(told[_SESSION]) == session:
            return True
        return b"%s=%s" % (MARK.encode(), mark) in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return False


def content(path: Path, limit: int) -> bytes | None:
    """A plain file's bytes; None: there is none, it is a link or no plain file, or it is larger than that."""
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
