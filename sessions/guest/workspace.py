"""Lists, writes, moves and deletes files of a session or sandbox. `reading.py` reads them.

Only the tool `kernel_image/files.py` accesses these files. It runs beside the kernel, as the same user, and resolves
paths inside the sandbox. So a trick with links or names reaches only the sandbox's own files.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kernel_image.protocol import FILES_TOOL, FRAME_FORMAT, TRUNCATED
from sessions.guest.paths import entry_path, sandbox_path
from sessions.guest.refusals import accepted
from sessions.guest.tools import ToolRunner, WorkspaceOwner, ask
from sessions.model.errors import ConnectionFailed, InvalidRequest, NoSpace, QuotaExceeded

_FRAME = struct.Struct(FRAME_FORMAT)
#: types of directory entries
KINDS = frozenset({"file", "directory", "link", "special"})
#: an entry of a directory: name, path, type (one of `KINDS`), size (bytes), modified (seconds since 1970), mode,
#: permissions (in the form of `ls`), owner, group
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileList:
    """The entries of a directory."""

    entries: list[Entry]
    #: whether further entries were left out
    truncated: bool


@dataclass(frozen=True, slots=True)
class Space:
    """The room of a workspace, in bytes."""

    size: int
    used: int


async def space_of(runner: ToolRunner) -> Space:
    """Return how much room a workspace has. Without a sandbox, this is the room of the machine's file system.

    Raises:
        ConnectionFailed: when the sandbox has ended, or gives no valid answer.
    """
    match await ask(runner, FILES_TOOL, {"op": "space"}):
        case {"size": int(size), "used": int(used)} if 0 <= used <= size:
            return Space(size, used)
    raise ConnectionFailed("the sandbox gave no valid answer")


async def list_files(owner: WorkspaceOwner, path: str, depth: int = 1) -> FileList:
    """Return the entries of a directory, and those of its subdirectories down to `depth`.

    Raises:
        FileNotFound: when the directory does not exist.
        InvalidRequest: when the path is not allowed.
    """
    answer = await _ask(owner, {"op": "list", "path": sandbox_path(path), "depth": depth})
    entries = answer.get("entries")
    entries = [entry for entry in entries if _is_entry(entry)] if isinstance(entries, list) else []
    return FileList(entries, answer.get(TRUNCATED) is True)


def in_hidden_directory(entry: Entry) -> bool:
    """Return whether an entry is what programs keep in hidden directories, such as caches."""
    return any(part.startswith(".") for part in PurePosixPath(entry["path"]).parts[:-1])


async def stat_file(owner: WorkspaceOwner, path: str) -> Entry:
    """Return the entry at a path. Links are followed.

    Raises:
        FileNotFound: when the path does not exist.
        InvalidRequest: when the path is not allowed.
    """
    return _entry_of(await _ask(owner, {"op": "stat", "path": sandbox_path(path)}))


def _entry_of(answer: dict[str, Any]) -> Entry:
    entry = answer.get("entry")
    if not isinstance(entry, dict) or not _is_entry(entry):
        raise ConnectionFailed("the sandbox gave no valid answer")
    return entry


def _is_entry(value: object) -> bool:
    match value:
        case {
            "name": str(),
            "path": str(),
            "type": str() as kind,
            "size": int(),
            "modified": int() | float(),
            "mode": int(),
            "permissions": str(),
            "owner": str(),
            "group": str(),
        }:
            return kind in KINDS
    return False


async def write_file(
    owner: WorkspaceOwner,
    path: str,
    size: int | None,
    content: AsyncIterable[bytes],
    *,
    mode: int | None = None,
    new_mode: int = 0o600,
    parents: bool = True,
) -> int:
    """Write a file completely, or leave the old file unchanged.

    Args:
        owner: session or sandbox of the file.
        path: path of the file.
        size: bytes of the content. None means that they are not known beforehand.
        content: pieces of the content.
        mode: permissions of the file. None means the permissions of the file that is replaced, or else `new_mode`.
        new_mode: permissions of a file that replaces no other file.
        parents: whether missing parent directories are made.

    Returns:
        size of the file in bytes.

    Raises:
        InvalidRequest: when the path is not allowed, or the content is shorter than `size`.
        NoSpace: when the workspace has no room for the file.
        QuotaExceeded: when the tenant's allowance of uploads is used up.
    """
    request: dict[str, Any] = {"op": "write", "path": entry_path(path), "parents": parents, "new_mode": new_mode}
    if mode is not None:
        request["mode"] = mode
    charged: _Charged | None = None
    if size is None:
        owner.charge_upload(0)
        content = charged = _Charged(owner, content)
    else:
        _check_size(owner, size)
        owner.charge_upload(size)
        request["size"] = size
    try:
        written = (await _ask(owner, request, content)).get("size")
    except InvalidRequest as error:
        raise (charged and charged.refusal) or error from None
    if type(written) is not int or written < 0:
        raise ConnectionFailed("the sandbox gave no valid answer")
    return written


def _check_size(owner: WorkspaceOwner, size: int) -> None:
    if size > owner.limits.disk:
        raise NoSpace(f"the file is larger than the workspace ({owner.limits.disk} bytes)", size=size)


class _Charged:
    """Content of unknown size, encoded for the tool. If it is too large, it has no end mark, so the tool refuses it."""

    def __init__(self, owner: WorkspaceOwner, content: AsyncIterable[bytes]) -> None:
        self._owner = owner
        self._content = content
        #: the error for the client, if the content was too large
        self.refusal: QuotaExceeded | NoSpace | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._content:
            size += len(piece)
            try:
                _check_size(self._owner, size)
                self._owner.charge_upload(len(piece))
            except (NoSpace, QuotaExceeded) as refusal:
                self.refusal = refusal
                return
            if piece:
                yield _FRAME.pack(len(piece)) + piece
        yield _FRAME.pack(0)


async def make_directory(owner: WorkspaceOwner, path: str, mode: int, *, parents: bool = True) -> Entry:
    """Make a directory. An existing directory stays as it is.

    Raises:
        FileNotFound: when the parent directory does not exist, and `parents` is False.
        InvalidRequest: when the path is not allowed, or something other than a directory exists there.
        NoSpace: when the workspace has no room.
    """
    request = {"op": "mkdir", "path": sandbox_path(path), "mode": mode, "parents": parents}
    return _entry_of(await _ask(owner, request))


async def move_file(
    owner: WorkspaceOwner, source: str, target: str, *, replace: bool = True, parents: bool = False
) -> Entry:
    """Move or rename an entry.

    Args:
        owner: session or sandbox of the entry.
        source: path of the entry.
        target: its new path.
        replace: whether a file at the target is replaced. Then a repeated call has no further effect.
        parents: whether missing parent directories of the target are made.

    Raises:
        FileExists: when the target is a directory, or exists and must not be replaced.
        FileNotFound: when the entry does not exist.
        InvalidRequest: when a path is not allowed.
        NoSpace: when the target's disk has no room.
    """
    request = {"op": "move", "path": entry_path(source), "to": entry_path(target)}
    return _entry_of(await _ask(owner, request | {"replace": replace, "parents": parents}))


async def delete_file(owner: WorkspaceOwner, path: str) -> None:
    """Delete a file, link or directory.

    Raises:
        FileNotFound: when the entry does not exist.
        InvalidRequest: when the path is not allowed.
    """
    await _ask(owner, {"op": "delete", "path": entry_path(path)})


async def _ask(
    owner: WorkspaceOwner, request: dict[str, Any], stdin: AsyncIterable[bytes] | None = None
) -> dict[str, Any]:
    return accepted(await ask(owner, FILES_TOOL, request, stdin))
