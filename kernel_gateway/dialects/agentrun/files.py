"""Files of a sandbox: reads and writes their content, as JSON or unchanged, and changes directories."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import MakeDirectory, Move, Remove, WriteFile
from kernel_gateway.errors import TooLarge
from kernel_gateway.http.formats import rfc3339
from kernel_gateway.http.transfers import send_file, wanted_part
from sessions.guest import workspace
from sessions.guest.paths import seen_path
from sessions.guest.reading import read_file
from sessions.guest.workspace import Entry
from sessions.model.errors import FileNotFound, InvalidRequest

#: maximum bytes of a file that is read as JSON
READ_MAX = 8 * 1024**2
#: encodings of written content. All of them take linear time; some codecs of Python do not (punycode)
ENCODINGS: Mapping[str, Callable[[str], bytes]] = {
    "utf-8": str.encode,
    "ascii": lambda text: text.encode("ascii"),
    "latin-1": lambda text: text.encode("latin-1"),
    "base64": lambda text: base64.b64decode(text, validate=True),
    "hex": bytes.fromhex,
}
DEPTH_MAX = 16
DIRECTORY_MODE = "0755"


def entry_model(entry: Entry, asked: str) -> dict[str, Any]:
    """Return an entry of a directory as clients see it.

    Args:
        entry: the entry.
        asked: path that the client has asked for.
    """
    kept = {name: entry[name] for name in ("name", "size", "mode", "permissions", "owner", "group")}
    kind = "symlink" if entry["type"] == "link" else entry["type"]
    return kept | {"type": kind, "path": seen_path(entry["path"], asked), "modifiedTime": rfc3339(entry["modified"])}


def mode_of(text: str) -> int:
    """Parse permissions in octal, for example `644`.

    Raises:
        InvalidRequest: when the text is not three octal digits.
    """
    if not re.fullmatch("0?o?[0-7]{3}", text):
        raise InvalidRequest("mode must be three octal digits, for example 644", field="mode")
    return int(text[-3:], 8)


class FileHandler(AgentRunHandler):
    """`/sandboxes/{id}/files`."""

    async def get(self, sandbox_id: str) -> None:
        """Read a file: text unchanged, other content in base64."""
        sandbox, path = self.sandbox(sandbox_id), self.path_argument()
        entry = await workspace.stat_file(sandbox, path)
        async with read_file(sandbox, path) as file:
            if file.size > READ_MAX:
                raise TooLarge(f"the file has {file.size} bytes: use /filesystem/download", size=file.size)
            content = b"".join([piece async for piece in file.content])
        try:
            told = {"content": content.decode(), "encoding": "utf-8"}
        except UnicodeDecodeError:
            told = {"content": base64.b64encode(content).decode(), "encoding": "base64"}
        self.finish_json(entry_model(entry, path) | told)

    async def post(self, sandbox_id: str) -> None:
        """Write a file."""
        body = self.body(WriteFile)
        content = _decoded(body)

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        size = await workspace.write_file(
            self.sandbox(sandbox_id),
            body.path,
            len(content),
            pieces(),
            mode=mode_of(body.mode) if body.mode else None,
            new_mode=0o644,
            parents=body.createDir,
        )
        self.finish_json({"path": body.path, "size": size})


def _decoded(body: WriteFile) -> bytes:
    decode = ENCODINGS.get((body.encoding or "utf-8").lower())
    if decode is None:
        raise InvalidRequest(f"encoding must be one of {', '.join(ENCODINGS)}", field="encoding")
    try:
        return decode(body.content)
    except ValueError:
        raise InvalidRequest("content is not valid in this encoding", field="encoding") from None


class DirectoryHandler(AgentRunHandler):
    """`/sandboxes/{id}/filesystem`."""

    async def get(self, sandbox_id: str) -> None:
        """List a directory."""
        path = self.path_argument("")
        listing = await workspace.list_files(self.sandbox(sandbox_id), path, self.number("depth", 1, DEPTH_MAX))
        entries = [entry_model(entry, path) for entry in listing.entries]
        self.finish_json({"path": path or seen_path(""), "entries": entries, "truncated": listing.truncated})


class StatHandler(AgentRunHandler):
    """`/sandboxes/{id}/filesystem/stat`."""

    async def get(self, sandbox_id: str) -> None:
        """Describe an entry."""
        path = self.path_argument()
        entry = entry_model(await workspace.stat_file(self.sandbox(sandbox_id), path), path)
        self.finish_json({**entry, "entry": entry})


class MakeDirectoryHandler(AgentRunHandler):
    """`/sandboxes/{id}/filesystem/mkdir`."""

    async def post(self, sandbox_id: str) -> None:
        """Make a directory. An existing directory is not changed."""
        body = self.body(MakeDirectory)
        mode = mode_of(body.mode or DIRECTORY_MODE)
        entry = await workspace.make_directory(self.sandbox(sandbox_id), body.path, mode, parents=body.parents)
        self.finish_json({"entry": entry_model(entry, body.path)})


class MoveHandler(AgentRunHandler):
    """`/sandboxes/{id}/filesystem/move`."""

    async def post(self, sandbox_id: str) -> None:
        """Move an entry. A repeated move changes nothing."""
        body = self.body(Move)
        entry = await workspace.move_file(self.sandbox(sandbox_id), body.source, body.destination)
        self.finish_json({"entry": entry_model(entry, body.destination)})


class RemoveHandler(AgentRunHandler):
    """`/sandboxes/{id}/filesystem/remove`."""

    async def post(self, sandbox_id: str) -> None:
        """Remove an entry with everything below it. A missing entry is not an error."""
        body = self.body(Remove)
        with suppress(FileNotFound):
            await workspace.delete_file(self.sandbox(sandbox_id), body.path)
        self.finish_json({"entry": {"path": body.path}})


class DownloadHandler(AgentRunHandler):
    """`/sandboxes/{id}/filesystem/download`."""

    async def get(self, sandbox_id: str) -> None:
        """Send a file's content unchanged."""
        path = self.path_argument()
        async with read_file(self.sandbox(sandbox_id), path, wanted_part(self.request.headers)) as file:
            await send_file(self, file, path)
