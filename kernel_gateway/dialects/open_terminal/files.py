"""`/files`: lists, reads, writes and searches the files of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus
from mimetypes import guess_type
from typing import Any

from kernel_gateway.dialects.open_terminal.base import TerminalHandler
from kernel_gateway.dialects.open_terminal.models import (
    ListQuery,
    Move,
    OnePath,
    Path,
    ReadQuery,
    ReplacementChunk,
    ReplaceRequest,
    ViewQuery,
    WriteRequest,
)
from kernel_gateway.errors import NotSupported, TooLarge
from kernel_gateway.http.transfers import send_file, wanted_part
from sessions.guest import workspace
from sessions.guest.paths import seen_path
from sessions.guest.reading import read_file
from sessions.guest.workspace import Entry
from sessions.model.errors import FileExists, FileNotFound, InvalidRequest, SessionError
from sessions.sandbox.sandbox import Sandbox

#: maximum bytes of a text that is read or changed as a whole
TEXT_MAX = 4 * 1024**2
#: permissions of new files and directories
FILE_MODE, DIRECTORY_MODE = 0o644, 0o755


def listed(entry: Entry) -> dict[str, Any]:
    """Return an entry of a directory as clients see it."""
    kind = "directory" if entry["type"] == "directory" else "file"
    kept = {name: entry[name] for name in ("name", "size", "modified")}
    return kept | {"type": kind, "writable": bool(entry["mode"] & 0o200)}


async def whole(sandbox: Sandbox, path: str) -> bytes:
    """Return the content of a file.

    Raises:
        TooLarge: when it is too large to be read as a whole.
    """
    async with read_file(sandbox, path) as file:
        if file.size > TEXT_MAX:
            raise TooLarge(f"the file has {file.size} bytes, and at most {TEXT_MAX} are read here", size=file.size)
        return b"".join([piece async for piece in file.content])


async def write_whole(sandbox: Sandbox, path: str, content: bytes) -> int:
    """Write a file, and return its size."""

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    return await workspace.write_file(sandbox, path, len(content), pieces(), new_mode=FILE_MODE)


class FileHandler(TerminalHandler):
    """A request about a file or directory."""

    async def require(self, sandbox: Sandbox, path: str, kind: str) -> None:
        """Check what is at a path.

        Args:
            sandbox: the sandbox.
            path: the path.
            kind: `file` or `directory`.

        Raises:
            FileNotFound: when there is nothing, or something else.
        """
        if (await workspace.stat_file(sandbox, path))["type"] != kind:
            raise FileNotFound(f"there is no {kind} at {path[:200]!r}")


class WorkingDirectoryHandler(FileHandler):
    """`/files/cwd`."""

    async def get(self) -> None:
        """Return the chat's working directory."""
        home, cwd = seen_path(""), self.desk(await self.sandbox()).directory(self.chat)
        self.finish_json({"cwd": cwd, "home": home, "root": {"path": home, "label": "Home"}})

    async def post(self) -> None:
        """Change the chat's working directory."""
        body, sandbox = self.body(Path), await self.sandbox()
        path = self.absolute(sandbox, body.path)
        await self.require(sandbox, path, "directory")
        self.desk(sandbox).set_directory(self.chat, path)
        self.finish_json({"cwd": path})


class ListHandler(FileHandler):
    """`/files/list`."""

    async def get(self) -> None:
        """List a directory."""
        query, sandbox = self.query(ListQuery), await self.sandbox()
        path = self.absolute(sandbox, query.directory)
        await self.require(sandbox, path, "directory")
        listing = await workspace.list_files(sandbox, path)
        entries = [listed(entry) for entry in listing.entries]
        self.finish_json({"dir": path, "writable": True, "entries": entries, "truncated": listing.truncated})


class ReadHandler(FileHandler):
    """`/files/read`."""

    async def get(self) -> None:
        """Return the text of a file, or an image."""
        query, sandbox = self.query(ReadQuery), await self.sandbox()
        path = self.absolute(sandbox, query.path)
        await self.require(sandbox, path, "file")
        kind = guess_type(path)[0] or "application/octet-stream"
        if kind.startswith("image/") and kind != "image/svg+xml":
            async with read_file(sandbox, path, wanted_part(self.request.headers)) as file:
                await send_file(self, file, path, kind)
            return
        try:
            text = (await whole(sandbox, path)).decode()
        except UnicodeDecodeError:
            raise NotSupported(f"Unsupported binary file type: {kind}") from None
        lines = text.splitlines(keepends=True)
        first, last = query.start_line or 1, query.end_line or len(lines)
        content = "".join(lines[first - 1 : last])
        self.finish_json({"path": path, "content": content, "total_lines": len(lines)})

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 415 for a file that is neither text nor an image."""
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE if isinstance(failure, NotSupported) else super().status_of(failure)


class DisplayHandler(FileHandler):
    """`/files/display`."""

    async def get(self) -> None:
        """Say whether a file exists, which makes the front end show it."""
        query, sandbox = self.query(OnePath), await self.sandbox()
        path, exists = self.absolute(sandbox, query.path), False
        with suppress(FileNotFound):
            exists = (await workspace.stat_file(sandbox, path))["type"] == "file"
        self.finish_json({"path": path, "exists": exists})


class ViewHandler(FileHandler):
    """`/files/view`, and `/files/serve/{path}`."""

    async def get(self, path: str | None = None) -> None:
        """Send a file unchanged."""
        sandbox = await self.sandbox()
        path = self.absolute(sandbox, self.query(ViewQuery).path if path is None else f"/{path}")
        async with read_file(sandbox, path, wanted_part(self.request.headers)) as file:
            await send_file(self, file, path, guess_type(path)[0] or "application/octet-stream")


class WriteHandler(FileHandler):
    """`/files/write`."""

    async def post(self) -> None:
        """Write a text."""
        body, sandbox = self.body(WriteRequest), await self.sandbox()
        path = self.absolute(sandbox, body.path)
        self.finish_json({"path": path, "size": await write_whole(sandbox, path, encoded(body.content))})


class ReplaceHandler(FileHandler):
    """`/files/replace`."""

    async def post(self) -> None:
        """Replace texts of a file. Nothing is written if one of them cannot be replaced."""
        body, sandbox = self.body(ReplaceRequest), await self.sandbox()
        path = self.absolute(sandbox, body.path)
        await self.require(sandbox, path, "file")
        try:
            text = (await whole(sandbox, path)).decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the file is no text", field="path") from None
        for chunk in body.replacements:
            text = replaced(text, chunk)
            if len(text) > TEXT_MAX:
                raise TooLarge(f"the file would have more than {TEXT_MAX} characters")
        self.finish_json({"path": path, "size": await write_whole(sandbox, path, encoded(text))})


def encoded(text: str) -> bytes:
    """Return a text as bytes.

    Raises:
        InvalidRequest: when it contains half a character.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the text contains a lone surrogate", field="content") from None


def replaced(text: str, chunk: ReplacementChunk) -> str:
    """Return a text with one replacement.

    Raises:
        InvalidRequest: when the text to replace is not there, or there several times.
    """
    if not chunk.target:
        raise InvalidRequest("target must not be empty", field="target")
    lines = text.splitlines(keepends=True)
    start = len("".join(lines[: (chunk.start_line or 1) - 1]))
    end = len("".join(lines[: chunk.end_line])) if chunk.end_line else len(text)
    region = text[start : max(start, end)]
    count = region.count(chunk.target)
    if not count:
        raise InvalidRequest(f"Target string not found: {chunk.target[:100]!r}", field="target")
    if count > 1 and not chunk.allow_multiple:
        raise InvalidRequest(f"Found {count} occurrences of target string, and allow_multiple is false", field="target")
    if len(text) + count * (len(chunk.replacement) - len(chunk.target)) > TEXT_MAX:
        raise TooLarge(f"the file would have more than {TEXT_MAX} characters")
    return text[:start] + region.replace(chunk.target, chunk.replacement) + text[max(start, end) :]


class MakeDirectoryHandler(FileHandler):
    """`/files/mkdir`."""

    async def post(self) -> None:
        """Make a directory and its missing parents."""
        body, sandbox = self.body(Path), await self.sandbox()
        path = self.absolute(sandbox, body.path)
        await workspace.make_directory(sandbox, path, DIRECTORY_MODE)
        self.finish_json({"path": path})


class DeleteHandler(FileHandler):
    """`/files/delete`."""

    async def delete(self) -> None:
        """Delete a file, or a directory with its content."""
        query, sandbox = self.query(OnePath), await self.sandbox()
        path = self.absolute(sandbox, query.path)
        kind = (await workspace.stat_file(sandbox, path))["type"]
        await workspace.delete_file(sandbox, path)
        self.finish_json({"path": path, "type": "directory" if kind == "directory" else "file"})


class MoveHandler(FileHandler):
    """`/files/move`."""

    async def post(self) -> None:
        """Move an entry. Nothing is replaced."""
        body, sandbox = self.body(Move), await self.sandbox()
        source, target = self.absolute(sandbox, body.source), self.absolute(sandbox, body.destination)
        await workspace.stat_file(sandbox, source)
        try:
            await workspace.move_file(sandbox, source, target, replace=False)
        except FileNotFound:
            raise InvalidRequest("Destination parent directory not found", field="destination") from None
        except FileExists:
            raise FileExists("Destination already exists") from None
        self.set_status(HTTPStatus.OK)
        self.finish_json({"source": source, "destination": target})
