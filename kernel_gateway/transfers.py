"""Files between a client and a sandbox, in pieces: memory stays flat whatever their size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import quote

from tornado.iostream import StreamClosedError

from kernel_gateway.handlers import BaseHandler
from sessions.errors import SessionError
from sessions.tasks import spawn
from sessions.workspace import OpenFile

#: pieces of an upload that wait for the sandbox
QUEUE = 4


class Upload:
    """A file on its way into a sandbox, which takes it as fast as it can."""

    def __init__(self, write: Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, int]]) -> None:
        """Begin.

        Args:
            write: takes the pieces; returns the file's size.
        """
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE)
        self._writing = spawn(write(self._content()), "upload")

    async def _content(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def send(self, piece: bytes | None) -> None:
        """Pass a piece on, when there is room; None is the end. What has failed already drops it."""
        if self._writing.done():
            return
        put = spawn(self._pieces.put(piece), "upload piece")
        await asyncio.wait({put, self._writing}, return_when=asyncio.FIRST_COMPLETED)
        put.cancel()

    async def finish(self) -> int:
        """Wait until the file is there.

        Returns:
            its size.

        Raises:
            SessionError: it could not be written.
        """
        await self.send(None)
        return await self._writing

    def abandon(self) -> None:
        """The client has left: what there is of the file is dropped."""
        self._writing.cancel()


async def send_file(handler: BaseHandler, file: OpenFile, path: str) -> None:
    """Answer with a file.

    Args:
        handler: of the request.
        file: what is sent.
        path: where it was; its last part is what it is called.
    """
    handler.set_header("Content-Type", "application/octet-stream")
    handler.set_header("Content-Length", str(file.size))
    # Source: RFC 6266 with RFC 5987; quoted, so that no name can break out of the header.
    name = quote(path.rsplit("/", 1)[-1], safe="")
    handler.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
    try:
        async for piece in file.content:
            handler.write(piece)
            await handler.flush()
    except SessionError:
        # The length is announced: all that is left is to end the connection before it is reached.
        handler.http.close()
    except StreamClosedError:
        return  # the client has left; the tool ends on the way out
