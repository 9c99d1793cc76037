"""Files of a session, streamed in both directions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from pydantic import BaseModel, Field

from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.request_body import Body
from kernel_gateway.http.transfers import NO_CONTENT, send_file, send_headers, wanted_part
from kernel_gateway.http.uploads import UploadHandler
from sessions.guest import workspace
from sessions.guest.paths import session_path
from sessions.guest.reading import read_file
from sessions.model.errors import InvalidRequest
from sessions.model.values import SessionKey
from sessions.session.session import Session

#: permissions of a directory that a client makes
DIRECTORY_MODE = 0o755


class FileEntry(BaseModel):
    """An entry of a directory."""

    name: str
    type: Literal["file", "directory", "link", "special"]
    size: int
    modified: float = Field(description="seconds since 1970")


class FileList(BaseModel):
    """The entries of a directory."""

    entries: list[FileEntry]
    truncated: bool = Field(description="True: there are more entries than a listing holds, and the rest is left out")


class Move(Body):
    """Where a file or directory is, and its new path."""

    source: str = Field(alias="from", description="path in the workspace, or below `/home/user`")
    target: str = Field(alias="to", description="new path; missing directories on its way are made")
    overwrite: bool = Field(False, description="replace a file at the new path; otherwise that is an error")  # noqa: FBT003


class MakeDirectory(Body):
    """A new directory."""

    path: str = Field(description="path in the workspace; directories on its way are made, too")


class FilesHandler(UploadHandler):
    """`/v1/sessions/{name}/files/{path}`."""

    new_mode = 0o600

    async def prepare(self) -> None:
        """Start an upload before its body is read."""
        super().prepare()
        if self.request.method != "PUT":
            return
        if self.announced_length is None and "Transfer-Encoding" not in self.request.headers:
            raise InvalidRequest("an upload needs a Content-Length, or must be chunked", field="Content-Length")
        self.expect()
        path = session_path(self.path_args[1])
        self.receiver = await self.gateway.registry.get_or_create(SessionKey(self.tenant, self.path_args[0]))
        self.begin(path, self.announced_length)

    async def put(self, _name: str, _path: str) -> None:
        """Write a file. Missing parent directories are made, and also the session if it does not exist."""
        await self.finish_upload()
        self.set_status(HTTPStatus.NO_CONTENT)

    async def get(self, name: str, path: str) -> None:
        """Download a file or a part of it (`Range`), or with `?list` list a directory."""
        session, path = self._session(name), session_path(path)
        if self.get_query_argument("list", None) is not None:
            listing = await workspace.list_files(session, path)
            entries = [FileEntry.model_validate(entry) for entry in listing.entries]
            self.finish_json(FileList(entries=entries, truncated=listing.truncated).model_dump())
            return
        async with read_file(session, path, wanted_part(self.request.headers)) as file:
            await send_file(self, file, path)

    async def head(self, name: str, path: str) -> None:
        """Send the headers of a download without the content."""
        path = session_path(path)
        async with read_file(self._session(name), path, NO_CONTENT) as file:
            await send_headers(self, file, path, file.size)

    async def delete(self, name: str, path: str) -> None:
        """Delete a file or directory."""
        await workspace.delete_file(self._session(name), session_path(path))
        self.set_status(HTTPStatus.NO_CONTENT)

    def _session(self, name: str) -> Session:
        return self.gateway.registry.get(SessionKey(self.tenant, name))


class MoveHandler(JsonHandler):
    """`/v1/sessions/{name}/move`."""

    async def post(self, name: str) -> None:
        """Rename a file or directory. A file at the new path is replaced only if the request allows that."""
        body, session = self.body(Move), self.gateway.registry.get(SessionKey(self.tenant, name))
        source, target = session_path(body.source), session_path(body.target)
        entry = await workspace.move_file(session, source, target, replace=body.overwrite, parents=True)
        self.finish_json(FileEntry.model_validate(entry).model_dump())


class MakeDirectoryHandler(JsonHandler):
    """`/v1/sessions/{name}/mkdir`."""

    async def post(self, name: str) -> None:
        """Make a directory and its missing parents, and also the session if it does not exist."""
        path = session_path(self.body(MakeDirectory).path)
        session = await self.gateway.registry.get_or_create(SessionKey(self.tenant, name))
        entry = await workspace.make_directory(session, path, DIRECTORY_MODE)
        self.finish_json(FileEntry.model_validate(entry).model_dump())
