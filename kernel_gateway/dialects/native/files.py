"""Files of a session, streamed in both directions."""

from __future__ import annotations

from http import HTTPStatus

from kernel_gateway.dialects.native.models import FileEntry, FileList
from kernel_gateway.handlers import BaseHandler
from kernel_gateway.transfers import Upload, send_file
from sessions.errors import InvalidRequest, NoSpace
from sessions.guest import workspace
from sessions.guest.paths import valid_path
from sessions.models import SessionKey
from sessions.session import Session


class FilesHandler(BaseHandler):
    """`/v1/sessions/{name}/files/{path}`."""

    _upload: Upload | None = None

    async def prepare(self) -> None:
        """Start an upload before its body is read."""
        super().prepare()
        if self.request.method != "PUT":
            return
        # The limit is the size of the workspace, not the limit of JSON bodies.
        disk, size = self.gateway.settings.disk, self.announced_length
        if size is None:
            raise InvalidRequest("an upload needs a Content-Length", field="Content-Length")
        if size > disk:
            raise NoSpace(f"the file is larger than any workspace ({disk} bytes)", size=size)
        self.http.set_max_body_size(disk)
        path = valid_path(self.path_args[1])
        session = await self._session(self.path_args[0], make=True)
        self._upload = Upload(lambda content: workspace.write_file(session, path, size, content))

    async def _session(self, name: str, *, make: bool = False) -> Session:
        key = SessionKey(self.tenant, name)
        return await self.gateway.registry.get_or_create(key) if make else self.gateway.registry.get(key)

    async def data_received(self, chunk: bytes) -> None:
        """Forward a chunk to the sandbox, with back-pressure on the client."""
        if self._upload is not None:
            await self._upload.send(chunk)

    def on_connection_close(self) -> None:
        """Drop an unfinished upload when the client has left."""
        super().on_connection_close()
        if self._upload is not None:
            self._upload.abandon()

    async def put(self, _name: str, _path: str) -> None:
        """Write a file. Missing parent directories are made, and the session on first use."""
        if self._upload is not None:
            await self._upload.finish()
        self.set_status(HTTPStatus.NO_CONTENT)

    async def get(self, name: str, path: str) -> None:
        """Download a file, or with `?list` list a directory."""
        session, path = await self._session(name), valid_path(path)
        if self.get_query_argument("list", None) is not None:
            listing = await workspace.list_files(session, path)
            entries = [FileEntry.model_validate(entry) for entry in listing.entries]
            self.finish_json(FileList(entries=entries, truncated=listing.truncated).model_dump())
            return
        async with workspace.read_file(session, path) as file:
            await send_file(self, file, path)

    async def delete(self, name: str, path: str) -> None:
        """Delete a file or directory."""
        await workspace.delete_file(await self._session(name), valid_path(path))
        self.set_status(HTTPStatus.NO_CONTENT)
