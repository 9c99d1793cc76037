"""Transfer files between a client and a sandbox in pieces: memory use does not depend on the size of a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import quote

from tornado.iostream import StreamClosedError

from kernel_gateway.handlers import BaseHandler
from sessions.errors import SessionError
from sessions.guest.workspace import OpenFile
from sessions.tasks import spawn

#: pieces of an upload that may wait for the sandbox
QUEUE = 4

#: seconds that a download waits for a client that reads nothing
STALL = 60.0


class Upload:
    """An upload of a file into a sandbox. The sandbox sets the pace."""

    def __init__(self, write: Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, int]]) -> None:
        """Start the upload.

        Args:
            write: function that writes the pieces and returns the file's size in bytes.
        """
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE)
        self._writing = spawn(write(self._content()), "upload")

    async def _content(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def send(self, piece: bytes | None) -> None:
        """Pass a piece on as soon as there is room; None ends the file. An upload that has failed drops the piece."""
        if self._writing.done():
            return
        put = spawn(self._pieces.put(piece), "upload piece")
        await asyncio.wait({put, self._writing}, return_when=asyncio.FIRST_COMPLETED)
        put.cancel()

    async def finish(self) -> int:
        """Wait until the file is written.

        Returns:
            the size of the file in bytes.

        Raises:
            SessionError: when the file could not be written.
        """
        await self.send(None)
        return await self._writing

    def abandon(self) -> None:
        """Cancel the upload, because the client has left; the incomplete file is dropped."""
        self._writing.cancel()


async def send_file(handler: BaseHandler, file: OpenFile, path: str) -> None:
    """Answer with a file.

    Args:
        handler: handler of the request.
        file: the file to send.
        path: path of the file; its last part is the name that the client sees.
    """
    handler.set_header("Content-Type", "application/octet-stream")
    handler.set_header("Content-Length", str(file.size))
    # Source: RFC 6266 with RFC 5987; quoted, so that no name can break out of the header.
    name = quote(path.rsplit("/", 1)[-1], safe="")
    handler.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
    try:
        async for piece in file.content:
            handler.write(piece)
            async with asyncio.timeout(STALL):
                await handler.flush()
    except (SessionError, TimeoutError):
        # The length is already sent, so only closing the connection early shows the failure to the client.
        handler.http.close()
    except StreamClosedError:
        return  # the client has left; returning ends the tool
