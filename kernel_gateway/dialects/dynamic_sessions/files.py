"""Files of a session, which code sees under `/mnt/data`: uploads, downloads and lists in the old and the new shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Any, ClassVar

from kernel_gateway.dialects.dynamic_sessions.base import PoolHandler
from kernel_gateway.http.multipart import FILE, FORM_MAX, NO_FORM, Form, Item, boundary_of
from kernel_gateway.http.transfers import send_file, wanted_part
from kernel_gateway.http.uploads import UploadHandler
from kernel_gateway.times import rfc3339
from sessions.guest import workspace
from sessions.guest.paths import session_path
from sessions.guest.reading import read_file
from sessions.guest.workspace import Entry
from sessions.model.errors import InvalidRequest

#: levels of directories that a list of all files has
DEPTH = 16
#: maximum bytes of a form's first line. Source: RFC 2046, 5.1.1: a boundary has at most 70 characters
FIRST_LINE_MAX = 80
#: the first version of the API with the new shape
NEW = "2024-10"


def old_list(entries: list[Entry]) -> dict[str, Any]:
    """Return a list of files in the old shape."""
    value = []
    for number, entry in enumerate(entries):
        told = {"filename": entry["path"], "size": entry["size"], "lastModifiedTime": rfc3339(entry["modified"])}
        value.append({"$id": str(2 * number + 2), "properties": {"$id": str(2 * number + 3)} | told})
    return {"$id": "1", "value": value}


def new_entry(entry: Entry) -> dict[str, Any]:
    """Return a file or directory in the new shape."""
    path = PurePosixPath(entry["path"])
    told = {
        "name": path.name,
        "type": "directory" if entry["type"] == "directory" else "file",
        "contentType": guess_type(path.name)[0] or "application/octet-stream",
        "sizeInBytes": entry["size"],
        "lastModifiedAt": rfc3339(entry["modified"]),
    }
    return told if len(path.parts) < 2 else told | {"directory": str(path.parent)}  # noqa: PLR2004 - it and its parent


class FormWithoutType:
    """A form whose content type names no boundary: Semantic Kernel sends another type. Its first line names it."""

    INCOMPLETE: ClassVar[str] = Form.INCOMPLETE

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._begin = b""
        self._form: Form | None = None

    @property
    def complete(self) -> bool:
        """True after the closing boundary has arrived."""
        return self._form is not None and self._form.complete

    def read(self, chunk: bytes) -> Iterable[Item]:
        """Return the items that a chunk of the body contains, in order.

        Raises:
            InvalidRequest: when the body is not a valid form.
        """
        if self._form is not None:
            return self._form.read(chunk)
        self._begin += chunk
        line, end, _ = self._begin.partition(b"\r\n")
        if len(line) > FIRST_LINE_MAX or not b"--".startswith(line[:2]) or (end and len(line) <= len(b"--")):
            raise InvalidRequest(NO_FORM, field="Content-Type")
        if not end:
            return ()
        self._form = Form(line.removeprefix(b"--"), self._path_of)
        begin, self._begin = self._begin, b""
        return self._form.read(begin)


class UploadingHandler(PoolHandler, UploadHandler):
    """Base of the handlers that accept uploads."""

    async def prepare(self) -> None:
        """Find the session and prepare the form, before the body is read."""
        super().prepare()
        if self.request.method != "POST":
            return
        self.expect(FORM_MAX)
        path_of = partial(_path_in, session_path(self.raw_argument("path") or ""))
        boundary = boundary_of(self.request.headers.get("Content-Type", ""))
        self.reader = FormWithoutType(path_of) if boundary is None else Form(boundary, path_of)
        self.receiver = await self.session()

    async def uploaded(self) -> Entry:
        """Finish the upload and return the file."""
        await self.finish_upload()
        return await workspace.stat_file(self.receiver, self.paths[0])


class OldUploadHandler(UploadingHandler):
    """`files/upload`."""

    async def post(self) -> None:
        """Write a file."""
        self.finish_json(old_list([await self.uploaded()]))


class FilesHandler(UploadingHandler):
    """`files`."""

    async def post(self) -> None:
        """Write a file, in the new shape."""
        self.finish_json(new_entry(await self.uploaded()))

    async def get(self) -> None:
        """List the files: all of them in the old shape, those of a directory in the new shape."""
        directory, session = session_path(self.raw_argument("path") or ""), await self.session()
        old = (self.raw_argument("api-version") or "") < NEW
        deep = old or (self.raw_argument("recursive") or "").lower() == "true"
        listing = await workspace.list_files(session, directory, DEPTH if deep else 1)
        entries = [entry for entry in listing.entries if not workspace.in_hidden_directory(entry)]
        if old:
            self.finish_json(old_list([entry for entry in entries if entry["type"] == "file"]))
        else:
            shown = [new_entry(entry) for entry in entries]
            self.finish_json({"value": shown, "nextLink": None, "truncated": listing.truncated})


class ContentHandler(PoolHandler):
    """`files/content/{path}` and `files/{name}/content`."""

    async def get(self, name: str) -> None:
        """Send a file."""
        path = _path(self, name)
        async with read_file(await self.session(), path, wanted_part(self.request.headers)) as file:
            await send_file(self, file, path)


class FileHandler(PoolHandler):
    """`files/{name}`."""

    async def get(self, name: str) -> None:
        """Describe a file."""
        entry = await workspace.stat_file(await self.session(), _path(self, name))
        old = (self.raw_argument("api-version") or "") < NEW
        self.finish_json(old_list([entry]) if old else new_entry(entry))

    async def delete(self, name: str) -> None:
        """Delete a file."""
        await workspace.delete_file(await self.session(), _path(self, name))
        old = (self.raw_argument("api-version") or "") < NEW
        self.set_status(HTTPStatus.OK if old else HTTPStatus.NO_CONTENT)


def _path_in(directory: str, name: str) -> str:
    """Return the path of a file by its name in a form: a path below a directory, or below `/mnt/data`."""
    if not name:
        raise InvalidRequest("the file has no name", field=FILE)
    return session_path(name if name.startswith("/") else f"{directory}/{name}".lstrip("/"))


def _path(handler: PoolHandler, name: str) -> str:
    """Return the path of a file; in the new shape the query names its directory."""
    directory = handler.raw_argument("path") or ""
    return session_path(name if name.startswith("/") or not directory else f"{directory}/{name}")
