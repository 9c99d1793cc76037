"""The processes of one kernel."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from kernel_image.procfs import pids, status
from sessions.backends.base import KERNEL_IMAGE, HandleListener
from sessions.backends.handshake import private_places
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit

_PIECE = 256 * 1024
#: indexes of fields in the status of a process
_PARENT, _SESSION, _STARTED = 1, 3, 19
#: seconds for a tool to end after its caller was cancelled
_TOOL_END = 1.0


class ProcessHandle:
    """The processes of one kernel."""

    def __init__(
        self, process: asyncio.subprocess.Process, info: ConnectionInfo, private: Path, workspace: Path
    ) -> None:
        self.id = private.name
        self.connection_info = info
        self.preloaded: Collection[str] = ()
        self._process = process
        self._private = private
        self._workspace = workspace
        self._killed = False
        self.used_at = time.monotonic()
        self._tools: set[asyncio.subprocess.Process] = set()
        self._gone = spawn(self._reap(), f"kernel process {self.id}")

    async def _reap(self) -> KernelExit:
        code = await self._process.wait()
        self._signal_all(signal.SIGKILL)  # processes that the kernel started end with it
        for tool in self._tools:
            with suppress(ProcessLookupError):
                tool.kill()
        shutil.rmtree(self._private, ignore_errors=True)
        return KernelExit(ExitReason.KILLED if self._killed else ExitReason.EXITED, code)

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the launcher's process session, in which the kernel has its own group."""
        for pid, _ in self._processes():
            with suppress(ProcessLookupError, PermissionError):  # ended meanwhile, or its id has been reused
                os.kill(pid, number)

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        for pid in pids():
            with suppress(OSError):  # ended meanwhile
                fields = status(pid)
                if int(fields[_SESSION]) == self._process.pid:
                    yield pid, fields

    def attach(self, listener: HandleListener, tenant: str) -> None:
        """Do nothing, because processes have no memory limit, and tenants take no turns here."""

    def make_responsive(self) -> None:
        """Record the time of this use. A plain process always reacts quickly."""
        self.used_at = time.monotonic()

    async def wait(self) -> KernelExit:
        """Wait until the kernel has ended."""
        return await asyncio.shield(self._gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel's process group. The launcher would pass the signal on, but not confirm it."""
        children = [
            (int(fields[_STARTED]), pid)
            for pid, fields in self._processes()
            if int(fields[_PARENT]) == self._process.pid
        ]
        if children:  # the launcher's first child is the kernel; others are orphans of the kernel
            with suppress(ProcessLookupError):  # ended meanwhile
                os.killpg(min(children)[1], signal.SIGINT)

    async def pause(self) -> None:
        """Stop the processes of the kernel."""
        self._signal_all(signal.SIGSTOP)

    async def resume(self) -> None:
        """Let the processes of the kernel continue."""
        self._signal_all(signal.SIGCONT)

    def memory(self) -> int | None:
        """Return None, because the memory of processes is not measured."""
        return None

    def processor_seconds(self) -> float | None:
        """Return None, because the processor time of processes is not measured."""
        return None

    async def kill(self) -> None:
        """Kill the processes of the kernel."""
        if not self._gone.done():
            self._killed = True
            self._signal_all(signal.SIGKILL)
        await self.wait()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the workspace."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(KERNEL_IMAGE / f"{name}.py"),
                argument,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=self._workspace,
                env=private_places(str(self._private)),
            )
        except OSError as error:  # the workspace is deleted, or the machine has no more processes
            raise ConnectionFailed(f"the tool could not be started: {error.strerror}") from error
        if process.stdin is None or process.stdout is None:
            raise ConnectionFailed("the tool has no pipes")
        self._tools.add(process)
        feeder = spawn(_write_stdin(process.stdin, stdin), f"input of {name}")
        try:
            while piece := await process.stdout.read(_PIECE):
                yield piece
            await process.wait()
            if process.returncode and process.returncode < 0:
                raise ConnectionFailed("the kernel ended during a file operation")
        finally:
            self._tools.discard(process)
            feeder.cancel()
            process.stdin.close()
            # At the end of its input, the tool deletes an unfinished file and ends on its own.
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOOL_END):
                    await process.wait()
            with suppress(ProcessLookupError):
                process.kill()
            await process.stdout.read()  # unread output would keep this end of the pipe open
            await process.wait()


async def _write_stdin(pipe: asyncio.StreamWriter, stdin: AsyncIterable[bytes] | None) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the tool answered before it read all input
        if stdin is not None:
            async for piece in stdin:
                pipe.write(piece)
                await pipe.drain()
        pipe.close()
