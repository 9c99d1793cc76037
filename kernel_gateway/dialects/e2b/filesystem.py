"""The service `filesystem.Filesystem`: lists, moves and removes files. Source: `envd`'s `filesystem.proto`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kernel_gateway.dialects.e2b.connect import UnaryHandler
from kernel_gateway.dialects.e2b.models import Body
from kernel_gateway.errors import TooLarge
from kernel_gateway.times import rfc3339
from sessions.guest import workspace
from sessions.guest.paths import seen_path
from sessions.guest.workspace import Entry
from sessions.model.errors import FileExists, FileNotFound, InvalidRequest

#: maximum levels of a listing
DEPTH_MAX = 16
TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}


class OnePath(Body):
    """A path."""

    path: str = ""


class ListDir(OnePath):
    """A directory to list."""

    depth: int = 1


class Move(Body):
    """An entry to move."""

    source: str = ""
    destination: str = ""


def entry_model(entry: Entry, asked: str) -> dict[str, Any]:
    """Return an entry as clients see it. The size is a text, as JSON of Protobuf writes 64-bit numbers.

    Args:
        entry: the entry.
        asked: path that the client has asked for.
    """
    kept = {name: entry[name] for name in ("name", "mode", "permissions", "owner", "group")}
    return kept | {
        "type": TYPES.get(entry["type"], "FILE_TYPE_UNSPECIFIED"),
        "path": seen_path(entry["path"], asked),
        "size": str(entry["size"]),
        "modifiedTime": rfc3339(entry["modified"], "microseconds"),
    }


class StatHandler(UnaryHandler):
    """`Stat`."""

    async def post(self) -> None:
        """Describe an entry."""
        path = self.body(OnePath).path
        self.finish_json({"entry": entry_model(await workspace.stat_file(self.sandbox, path), path)})


class ListHandler(UnaryHandler):
    """`ListDir`."""

    async def post(self) -> None:
        """List a directory."""
        body = self.body(ListDir)
        if not 0 <= body.depth <= DEPTH_MAX:
            raise InvalidRequest(f"depth must be at most {DEPTH_MAX}", field="depth")
        listing = await workspace.list_files(self.sandbox, body.path, body.depth or 1)
        if listing.truncated:  # an answer has no field that could report this
            raise TooLarge(f"the directory has more entries than a list may have; {len(listing.entries)} would be told")
        entries = sorted(listing.entries, key=lambda entry: entry["path"].split("/"))  # a directory, then what is in it
        self.finish_json({"entries": [entry_model(entry, body.path) for entry in entries]})


class MakeDirHandler(UnaryHandler):
    """`MakeDir`."""

    async def post(self) -> None:
        """Make a directory and its missing parents."""
        path = self.body(OnePath).path
        with suppress(FileNotFound):
            found = await workspace.stat_file(self.sandbox, path)
            if found["type"] != "directory":
                raise InvalidRequest("something that is no directory is at this path", field="path")
            raise FileExists("the directory exists already")
        self.finish_json({"entry": entry_model(await workspace.make_directory(self.sandbox, path, 0o755), path)})


class MoveHandler(UnaryHandler):
    """`Move`."""

    async def post(self) -> None:
        """Move an entry. A file at the destination is replaced."""
        body = self.body(Move)
        moved = await workspace.move_file(self.sandbox, body.source, body.destination, parents=True)
        self.finish_json({"entry": entry_model(moved, body.destination)})


class RemoveHandler(UnaryHandler):
    """`Remove`."""

    async def post(self) -> None:
        """Remove an entry with everything below it. A missing entry is not an error."""
        with suppress(FileNotFound):
            await workspace.delete_file(self.sandbox, self.body(OnePath).path)
        self.finish_json({})
