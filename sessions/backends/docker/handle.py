"""One kernel's container."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from typing import Any

from docker.errors import APIError, NotFound

from sessions.backends.base import nobody_cares
from sessions.backends.docker.cgroup import MemoryCount
from sessions.backends.docker.engine import TOOL, Engine, take_over
from sessions.backends.docker.profile import IMAGE_DIR, PYTHON, WORKSPACE
from sessions.errors import BackendUnavailable, ConnectionFailed, QuotaExceeded, SessionError
from sessions.models import ConnectionInfo, ExitReason, KernelExit
from sessions.tasks import spawn

#: seconds for the engine to remove a container; after that it counts as gone, and is removed when that can be done
GIVE_UP = 10.0
#: seconds for the launcher to end after SIGTERM; then comes SIGKILL
STOP = 1
#: seconds that somebody else may pause a container; gVisor's own network goes on meanwhile, so it seems to be reachable
PAUSE_MAX = 10.0
#: seconds from the engine's word of the memory limit to the end that comes of it
OOM_TO_END = 3.0
#: seconds within which the launcher has passed a signal on, which it tells nobody; measured: 0.5 ms on a busy machine
PASSED_ON = 0.2
#: seconds a tool may be silent
TOOL_TIMEOUT = 60.0
#: tools at a time, those included that nobody waits for any more
TOOLS_MAX = 16
#: bytes and seconds: how fast is read what nobody wants
LEFTOVER_PIECE = 256 * 1024
LEFTOVER_PAUSE = 0.01
_STDOUT = 1
#: stream, three unused, length. Source: Docker Engine API, "Stream format" of attach
_FRAME = struct.Struct(">BxxxI")


class DockerHandle:
    """A container that was started; it is removed when it ends, whoever ended it."""

    def __init__(self, engine: Engine, container: str, info: ConnectionInfo) -> None:
        self.id = container
        self.connection_info = info
        self.on_out_of_memory: Callable[[], None] = nobody_cares
        #: the only one that it runs on; None: any
        self.processor: int | None = None
        self._engine = engine
        self._memory = MemoryCount(container)
        #: it was started; only then is its absence from the running ones an end
        self.was_running = False
        self._killed = False
        #: when the engine last told that the container met its memory limit
        self._out_of_memory: float | None = None
        self._tools: set[asyncio.StreamWriter] = set()
        #: tools that were begun and have not ended
        self._tools_open = 0
        self._end: asyncio.Task[KernelExit] | None = None
        #: the end of a pause that lasts too long
        self._pause: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[KernelExit] = self._loop.create_future()

    async def wait(self) -> KernelExit:
        """Wait until the container is gone."""
        return await asyncio.shield(self._gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the launcher, which passes it on."""
        with suppress(APIError, BackendUnavailable):  # gone, or unreachable: the next rung of the ladder follows
            await self._engine.call(lambda: self._engine.api.kill(self.id, "SIGINT"), lane=TOOL)
            await asyncio.sleep(PASSED_ON)

    def memory(self) -> int | None:
        """Bytes that the container uses now, as its control group counts them; none where that is out of sight."""
        return self._memory.read()

    async def kill(self) -> None:
        """Remove the container with all that runs in it."""
        self._killed = True
        self.ended()
        await self.wait()

    def note_out_of_memory(self) -> None:
        """The engine has told that it met its memory limit; it need not end of that."""
        self._out_of_memory = self._loop.time()
        self.on_out_of_memory()

    def note_paused(self) -> None:
        """It stands still, and has a while to go on. Idempotent."""
        if self._pause is None:
            self._pause = self._loop.call_later(PAUSE_MAX, self.ended)

    def note_resumed(self) -> None:
        """It goes on."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def ended(self) -> None:
        """It has ended or is to end: find out how, and remove it. Idempotent."""
        self.note_resumed()
        if self._end is None:
            self._end = spawn(self._bury(), f"end of container {self.id[:12]}")

    async def _bury(self) -> KernelExit:
        removal = self._engine.insist(self._bury_blocking, name=f"removal of container {self.id[:12]}")
        # An engine that does not answer keeps nobody waiting: the kernel is of no use to anybody any more.
        await asyncio.wait({removal}, timeout=GIVE_UP)
        if removal.done() and not removal.cancelled():
            ended = removal.result()
        else:
            ended = KernelExit(ExitReason.KILLED if self._killed else ExitReason.EXITED)
        for writer in self._tools:
            writer.transport.abort()  # some engine versions never end the stream of a tool whose container ended
        self._gone.set_result(ended)
        return ended

    def _bury_blocking(self) -> KernelExit:
        try:
            if self._killed:
                state: dict[str, Any] = {}
                self._stop_blocking()
            else:
                state = self._engine.api.inspect_container(self.id)["State"]
            self._engine.api.remove_container(self.id, force=True)
        except NotFound:
            state = {}
        if self._killed:
            return KernelExit(ExitReason.KILLED)
        reason = ExitReason.OOM if self._ended_of_memory(state) else ExitReason.EXITED
        return KernelExit(reason, state.get("ExitCode"))

    def _stop_blocking(self) -> None:
        # An engine may take a minute to remove a container that runs and has had many processes: see the launcher.
        with suppress(APIError):  # it is removed all the same
            self._engine.api.stop(self.id, timeout=STOP)

    def _ended_of_memory(self, state: dict[str, Any]) -> bool:
        """Whether the memory limit was its end.

        The exit code does not tell: the host's killer often takes a part of the sandbox that looks from inside like
        a process that ended by itself. The engine's own flag stays set once some process in there was killed.
        """
        if self._out_of_memory is None:
            return bool(state.get("OOMKilled"))
        return self._loop.time() - self._out_of_memory < OOM_TO_END

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the container."""
        if self._tools_open >= TOOLS_MAX:
            raise QuotaExceeded(f"at most {TOOLS_MAX} file operations of a session at a time", max=TOOLS_MAX)
        self._tools_open += 1
        # Tasks of their own: a tool that began is seen off, whoever leaves meanwhile.
        opening = spawn(self._open_tool(name, argument), f"begin {name}")
        feeding: asyncio.Task[None] | None = None
        try:
            reader, writer = await asyncio.shield(opening)
            feeding = spawn(_feed(writer, stdin), f"input of {name}")
            while piece := await _next_piece(reader):
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionFailed("the sandbox ended during a file operation") from error
        except TimeoutError as error:
            raise ConnectionFailed("the sandbox does not get on with a file operation") from error
        finally:
            if feeding is not None:
                feeding.cancel()
            spawn(self._see_off(opening), f"end of {name}")

    async def _open_tool(self, name: str, argument: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            connection, early = await self._engine.call(self._exec_blocking, name, argument, lane=TOOL)
        except APIError as error:
            raise ConnectionFailed("the sandbox cannot run a file operation now") from error
        reader = asyncio.StreamReader()
        reader.feed_data(early)
        transport, protocol = await self._loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), sock=connection
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        self._tools.add(writer)
        return reader, writer

    async def _see_off(self, opening: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        """Close a tool's input and take what it still says, until it ends.

        A tool that finds nobody to take its output stands still, and then the engine can never end the container:
        it waits for the tool, gives up, and keeps the workspace's memory for good.
        """
        try:
            with suppress(SessionError, ConnectionError):
                await self._drain(*await opening)
        finally:
            self._tools_open -= 1

    async def _drain(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write_eof()
            while not reader.at_eof():
                await reader.read(LEFTOVER_PIECE)
                await asyncio.sleep(LEFTOVER_PAUSE)  # it may say as much as it likes, but not cost us much
        finally:
            self._tools.discard(writer)
            writer.transport.abort()

    def _exec_blocking(self, name: str, argument: str) -> tuple[socket.socket, bytes]:
        api = self._engine.api
        created = api.exec_create(
            self.id,
            [PYTHON, "-I", "-S", f"{IMAGE_DIR}/{name}.py", argument],
            stdin=True,
            stdout=True,
            stderr=False,
            workdir=WORKSPACE,
        )
        connection, early = take_over(api.exec_start(created["Id"], socket=True))
        connection.settimeout(0)
        return connection, early


async def _next_piece(reader: asyncio.StreamReader) -> bytes:
    """The next piece of the tool's standard output; empty at its end."""
    while True:
        async with asyncio.timeout(TOOL_TIMEOUT):
            try:
                stream, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                return b""
            piece = await reader.readexactly(size)
        if stream == _STDOUT and piece:
            return piece


async def _feed(writer: asyncio.StreamWriter, stdin: AsyncIterable[bytes] | None) -> None:
    with suppress(ConnectionError):  # the tool has its answer ready before it has read all
        if stdin is not None:
            async for piece in stdin:
                writer.write(piece)
                await writer.drain()
        writer.write_eof()
