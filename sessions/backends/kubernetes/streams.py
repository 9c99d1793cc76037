"""The input and output of one process in a Pod, over a WebSocket to the cluster's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

import aiohttp

from sessions.model.errors import ConnectionFailed

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

    async def write(self, piece: bytes) -> None:
        """Send a piece of input."""
        for begin in range(0, len(piece), PIECE):
            await self._connection.send_bytes(bytes([_STDIN]) + piece[begin : begin + PIECE])

    async def end_input(self) -> None:
        """Tell the process that no more input follows."""
        await self._connection.send_bytes(bytes([_CLOSE, _STDIN]))

    async def feed(self, stdin: AsyncIterable[bytes] | None) -> None:
        """Send the whole input, and then its end. Does nothing more once the process has ended."""
        try:
            if stdin is not None:
                async for piece in stdin:
                    await self.write(piece)
            await self.end_input()
        except (ConnectionError, aiohttp.ClientError):
            return  # the tool answered before it read all input

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
                return b""
            if message.data[:1] == bytes([_STDOUT]) and len(message.data) > 1:
                return bytes(message.data[1:])

    async def aclose(self) -> None:
        """Close the connection, which ends the process's input."""
        await self._connection.close()
