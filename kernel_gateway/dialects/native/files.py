"""Files of a session, streamed both ways: memory stays flat whatever their size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.native.models import FileEntry, FileList
from kernel_gateway.handlers import BaseHandler
from sessions import workspace
from sessions.errors import InvalidRequest, NoSpace, SessionError
from sessions.models import SessionKey
from sessions.session import Session
from sessions.tasks import spawn

#: pieces of an upload that wait for the sandbox
QUEUE = 4


class FilesHandler(BaseHandler):
    """`/v1/sessions/{name}/files/{path}`."""

    _upload: asyncio.Task[None] | None = None
    _pieces: asyncio.Queue[bytes | None]

    async def prepare(self) -> None:
        """Begin an upload before its body is read."""
        super().prepare()
        if self.request.method != "PUT":
            return
        # Bounded by the workspace, not by what a JSON body may have.
        disk, size = self.gateway.settings.disk, self.announced
        if size is None:
            raise InvalidRequest("an upload needs a Content-Length", field="Content-Length")
        if size > disk:
            raise NoSpace(f"the file is larger than any workspace ({disk} bytes)", size=size)
        self.http.set_max_body_size(disk)
        session = await self._session(self.path_args[0], make=True)
        self._pieces = asyncio.Queue(QUEUE)
        path = self.path_args[1]
        self._upload = spawn(workspace.write_file(session, path, size, self._content()), "upload")

    async def _session(self, name: str, *, make: bool = False) -> Session:
        key = SessionKey(self.tenant, name)
        return await self.gateway.registry.obtain(key) if make else self.gateway.registry.get(key)

    async def _content(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def data_received(self, chunk: bytes) -> None:
        """Pass a piece on; the client waits while the sandbox does."""
        await self._pass_on(chunk)

    async def _pass_on(self, piece: bytes | None) -> None:
        if self._upload is None or self._upload.done():
            return  # it has failed already; the rest of the body is read and dropped
        put = spawn(self._pieces.put(piece), "upload piece")
        await asyncio.wait({put, self._upload}, return_when=asyncio.FIRST_COMPLETED)
        put.cancel()

    def on_connection_close(self) -> None:
        """The client has left: what there is of an upload is dropped."""
        super().on_connection_close()
        if self._upload is not None:
            self._upload.cancel()

    async def put(self, _name: str, _path: str) -> None:
        """Write a file; directories on the way are made, and the session too on first use."""
        await self._pass_on(None)
        if self._upload is not None:
            await self._upload
        self.set_status(HTTPStatus.NO_CONTENT)

    async def get(self, name: str, path: str) -> None:
        """Download a file, or with `?list` list a directory."""
        session = await self._session(name)
        if self.get_query_argument("list", None) is not None:
            entries = [FileEntry.model_validate(entry) for entry in await workspace.list_files(session, path)]
            self.finish_json(FileList(entries=entries).model_dump())
            return
        async with workspace.read_file(session, path) as file:
            self.set_header("Content-Type", "application/octet-stream")
            self.set_header("Content-Length", str(file.size))
            # Source: RFC 6266 with RFC 5987; quoted, so that no name can break out of the header.
            self.set_header(
                "Content-Disposition", f"attachment; filename*=UTF-8''{quote(path.rsplit('/', 1)[-1], safe='')}"
            )
            try:
                async for piece in file.content:
                    self.write(piece)
                    await self.flush()
            except SessionError:
                # The length is announced: all that is left is to end the connection before it is reached.
                self.http.close()
            except StreamClosedError:
                return  # the client has left; the tool ends on the way out

    async def delete(self, name: str, path: str) -> None:
        """Delete a file or directory."""
        await workspace.delete_file(await self._session(name), path)
        self.set_status(HTTPStatus.NO_CONTENT)
