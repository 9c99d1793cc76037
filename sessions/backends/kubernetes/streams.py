"""The input and output of one process in a Pod, over a WebSocket to the cluster's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

import aiohttp
import orjson

from sessions.model.errors import ConnectionFailed, SessionError

#: version 5, which can end the input while output follows; it is on by default since Kubernetes 1.30
PROTOCOL = "v5.channel.k8s.io"
#: seconds that a tool may run without output
TIMEOUT = 60.0
#: bytes of input in one message
PIECE = 32 * 1024
#: first byte of a message: what follows it. Source: Kubernetes, `remotecommand/websocket.go`
_STDIN, _STDOUT, _STATUS, _CLOSE = 0, 1, 3, 255


class Stream:
    """The input and output of one process."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        #: whether the input could not be sent
        self._broken = False
        #: exit code of the process, once `read` has found the end of its output. None means that it is not known.
        self.exit_code: int | None = None

    async def write(self, piece: bytes) -> None:
        """Send a piece of input.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        for begin in range(0, len(piece), PIECE):
            await self._send(bytes([_STDIN]) + piece[begin : begin + PIECE])

    async def end_input(self) -> None:
        """Tell the process that no more input follows.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        await self._send(bytes([_CLOSE, _STDIN]))

    async def _send(self, message: bytes) -> None:
        try:
            await self._connection.send_bytes(message)
        except (ConnectionError, aiohttp.ClientError) as error:
            self._broken = True
            raise ConnectionFailed("the sandbox cannot be reached now") from error

    async def feed(self, stdin: AsyncIterable[bytes] | None) -> None:
        """Send the whole input, and then its end. Does nothing more once the process has ended.

        Raises:
            SessionError: when the input fails. The process must not take what came before for the whole input, so the
                connection is closed, of which the reader learns.
        """
        try:
            if stdin is not None:
                async for piece in stdin:
                    await self.write(piece)
            await self.end_input()
        except SessionError:
            if self._broken:
                return  # the tool answered before it read all input
            await self.aclose()
            raise

    async def read(self, *, within: float | None = TIMEOUT) -> bytes:
        """Return the next piece of output. An empty piece means its end.

        Args:
            within: seconds that the process may print nothing. None means no limit.

        Raises:
            ConnectionFailed: when the container ended, or the process prints nothing for too long.
        """
        while True:
            try:
                async with asyncio.timeout(within):
                    message = await self._connection.receive()
            except TimeoutError as error:
                raise ConnectionFailed("the sandbox makes no progress with a file operation") from error
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise ConnectionFailed("the sandbox ended during a file operation")
            if message.data[:1] == bytes([_STATUS]):
                self.exit_code = _exit_code(message.data[1:])
                return b""
            if message.data[:1] == bytes([_STDOUT]) and len(message.data) > 1:
                return bytes(message.data[1:])

    async def aclose(self) -> None:
        """Close the connection, which ends the process's input."""
        await self._connection.close()


def _exit_code(status: bytes) -> int | None:
    """Return the exit code that a message about a process's end names, or None for one that did not run."""
    try:
        told = orjson.loads(status)
        if told["status"] == "Success":
            return 0
        causes = {cause["reason"]: cause["message"] for cause in told["details"]["causes"]}
        return int(causes["ExitCode"])
    except (ValueError, KeyError):
        return None
