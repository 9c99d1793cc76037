"""The connection to one tool that runs in a container.

A tool blocks if nobody reads its output. Then the engine waits for the tool when it should end the container, and after
a timeout it never frees the workspace's memory. So the output of a tool is always read to its end, even if its caller
was cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import cast

from docker.errors import APIError

from sessions.backends.docker.engine.engine import TOOL, Engine, take_over
from sessions.backends.docker.profile import IMAGE_DIR, PYTHON, WORKSPACE
from sessions.model.errors import ConnectionFailed

#: seconds that a tool may run without output
TIMEOUT = 60.0
#: bytes per read, and seconds between two reads, of output whose caller was cancelled
LEFTOVER_PIECE = 256 * 1024
LEFTOVER_PAUSE = 0.01
_STDOUT = 1
#: stream, three unused bytes, length. Source: Docker Engine API, "Stream format" of attach
_FRAME = struct.Struct(">BxxxI")


class _Discard(asyncio.Protocol):
    """Reads output as fast as it arrives, and discards it."""


class ToolStream:
    """The input and output of one tool."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._discarding = False

    @classmethod
    async def open(cls, engine: Engine, container: str, name: str, argument: str, tenant: str) -> ToolStream:
        """Start a tool for a tenant.

        Raises:
            ConnectionFailed: when the engine refused.
            BackendUnavailable: when the engine does not answer.
        """
        try:
            connection, early = await engine.call(
                _start_blocking, engine, container, name, argument, lane=TOOL, owner=tenant
            )
        except APIError as error:
            raise ConnectionFailed("the sandbox cannot run a file operation now") from error
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        reader.feed_data(early)
        transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), sock=connection
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def next_piece(self) -> bytes:
        """Return the next piece of the tool's standard output. An empty piece means its end.

        Raises:
            ConnectionError: when the container has ended.
            TimeoutError: when the tool prints nothing for too long.
        """
        while True:
            async with asyncio.timeout(TIMEOUT):
                try:
                    stream, size = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
                except asyncio.IncompleteReadError as error:
                    if error.partial:
                        raise
                    return b""
                piece = await self._reader.readexactly(size)
            if stream == _STDOUT and piece:
                return piece

    async def write(self, stdin: AsyncIterable[bytes] | None) -> None:
        """Send the tool its whole input, and then the end of its input."""
        with suppress(ConnectionError):  # the tool answered before it read all input
            if stdin is not None:
                async for piece in stdin:
                    self._writer.write(piece)
                    await self._writer.drain()
            self._writer.write_eof()

    async def read_to_end(self) -> None:
        """Close the tool's input and discard its output until it ends, at a bounded rate."""
        try:
            with suppress(ConnectionError):
                self._writer.write_eof()
                while not self._reader.at_eof():
                    await self._reader.read(LEFTOVER_PIECE)
                    await asyncio.sleep(LEFTOVER_PAUSE)  # the output may be endless, so its rate must be limited
        finally:
            if not self._discarding:
                self.abort()

    def discard(self) -> None:
        """Raise an error in the present reader, and discard all further output. Call this when the container ends."""
        if self._discarding:
            return
        self._discarding = True
        self._reader.set_exception(ConnectionResetError("the container ends"))
        transport = cast("asyncio.Transport", self._writer.transport)  # it both reads and writes
        if not transport.is_closing():
            transport.set_protocol(_Discard())
            transport.resume_reading()
            with suppress(OSError, RuntimeError):
                self._writer.write_eof()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


def _start_blocking(engine: Engine, container: str, name: str, argument: str) -> tuple[socket.socket, bytes]:
    api = engine.api
    created = api.exec_create(
        container,
        [PYTHON, "-I", "-S", f"{IMAGE_DIR}/{name}.py", argument],
        stdin=True,
        stdout=True,
        stderr=False,
        workdir=WORKSPACE,
    )
    connection, early = take_over(api.exec_start(created["Id"], socket=True))
    connection.settimeout(0)
    return connection, early
