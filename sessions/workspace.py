"""Files of a session: path rules and size limits.

A session's files are only ever touched by `kernel_image/files.py`, which runs beside the kernel as its user:
paths are resolved in the sandbox, so a trick with links or names meets the sandbox's own files at most.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from kernel_image.files import FRAME, TEMPORARY
from sessions.errors import ConnectionFailed, FileNotFound, InvalidRequest, NoSpace, QuotaExceeded
from sessions.tools import Place, ask, first_line

PATH_MAX = 1024
#: what an entry of a directory can be
KINDS = frozenset({"file", "directory", "link", "special"})
#: what the workspace is called by programs in a sandbox
HOMES = ("/home/user", "/workspace")


def valid_path(path: str) -> str:
    """Check a path in a workspace.

    Returns:
        it, relative to the workspace; empty for the workspace itself.

    Raises:
        InvalidRequest: it leads out of the workspace or holds control characters.
    """
    if len(path.encode("utf-8", "surrogatepass")) > PATH_MAX:
        raise InvalidRequest(f"path is longer than {PATH_MAX} bytes", field="path")
    if any(not character.isprintable() for character in path):
        raise InvalidRequest("path holds a character that cannot be printed", field="path")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise InvalidRequest("path leads out of the workspace", field="path")
    return "/".join(parts)


def sandbox_path(path: str) -> str:
    """Check a path as programs in the sandbox write it: in their home directory, which is the workspace, or in `/tmp`.

    Returns:
        it, relative to the workspace when it lies there.

    Raises:
        InvalidRequest: it leads elsewhere.
    """
    inside = valid_path(path)
    if not path.startswith("/"):
        return inside
    for home in HOMES:
        if f"/{inside}/".startswith(f"{home}/"):
            return inside[len(home) :]
    if f"/{inside}/".startswith(f"{TEMPORARY}/"):
        return f"/{inside}"
    raise InvalidRequest(f"path is neither in {HOMES[0]} nor in {TEMPORARY}", field="path")


def seen_path(path: str) -> str:
    """What programs in the sandbox call a path that `sandbox_path` has returned."""
    return path if path.startswith("/") else f"{HOMES[0]}/{path}".rstrip("/")


#: an entry of a directory: name, path, type (one of `KINDS`), size (bytes), modified (seconds since 1970), mode,
#: permissions (as `ls` shows them), owner, group
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is being read."""

    size: int
    content: AsyncIterator[bytes]


async def list_files(place: Place, path: str, depth: int = 1) -> list[Entry]:
    """The entries of a directory, and those of its directories to a depth.

    Raises:
        FileNotFound: there is no such directory.
        InvalidRequest: the path is not allowed.
    """
    answer = await _ask(place, {"op": "list", "path": sandbox_path(path), "depth": depth})
    entries = answer.get("entries")
    return [entry for entry in entries if _is_entry(entry)] if isinstance(entries, list) else []


async def stat_file(place: Place, path: str) -> Entry:
    """What is at a path, after all links are followed.

    Raises:
        FileNotFound: nothing is.
        InvalidRequest: the path is not allowed.
    """
    return _entry_of(await _ask(place, {"op": "stat", "path": sandbox_path(path)}))


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
    place: Place,
    path: str,
    size: int | None,
    content: AsyncIterable[bytes],
    *,
    mode: int | None = None,
    parents: bool = True,
) -> int:
    """Write a file, all or nothing.

    Args:
        place: where.
        path: what it is called.
        size: of the content in bytes; None: it is not known beforehand.
        content: its pieces.
        mode: its permissions; None: for its user alone.
        parents: make the directories on the way.

    Returns:
        its size in bytes.

    Raises:
        InvalidRequest: the path is not allowed, or the content is shorter than `size`.
        NoSpace: it does not fit.
        QuotaExceeded: the tenant has sent as much as it may.
    """
    request: dict[str, Any] = {"op": "write", "path": _named(path), "parents": parents}
    if mode is not None:
        request["mode"] = mode
    charged: _Charged | None = None
    if size is None:
        place.charge_upload(0)
        content = charged = _Charged(place, content)
    elif size > place.limits.disk:
        raise NoSpace(f"the file is larger than the workspace ({place.limits.disk} bytes)", size=size)
    else:
        place.charge_upload(size)
        request["size"] = size
    try:
        written = (await _ask(place, request, content)).get("size")
    except InvalidRequest as error:
        raise (charged and charged.refusal) or error from None
    if type(written) is not int or written < 0:
        raise ConnectionFailed("the sandbox gave no valid answer")
    return written


class _Charged:
    """Content as the tool takes it when its size is not known; it has no end when its tenant may send no more."""

    def __init__(self, place: Place, content: AsyncIterable[bytes]) -> None:
        self._place = place
        self._content = content
        #: why it has no end
        self.refusal: QuotaExceeded | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._content:
            try:
                self._place.charge_upload(len(piece))
            except QuotaExceeded as refusal:
                self.refusal = refusal
                return
            if piece:
                yield FRAME.pack(len(piece)) + piece
        yield FRAME.pack(0)


def _named(path: str) -> str:
    """A path that names an entry.

    Raises:
        InvalidRequest: it is not allowed, or names the workspace or `/tmp` itself.
    """
    if (path := sandbox_path(path)) in {"", TEMPORARY}:
        raise InvalidRequest("path names no file", field="path")
    return path


async def make_directory(place: Place, path: str, mode: int, *, parents: bool = True) -> Entry:
    """Make a directory; nothing changes when there is one.

    Raises:
        FileNotFound: the directory above it is not there, and `parents` are not made.
        InvalidRequest: the path is not allowed, or something else is there.
        NoSpace: there is no room.
    """
    request = {"op": "mkdir", "path": sandbox_path(path), "mode": mode, "parents": parents}
    return _entry_of(await _ask(place, request))


async def move_file(place: Place, source: str, target: str) -> Entry:
    """Rename an entry, over a file that is there; once done, doing it again changes nothing.

    Raises:
        FileNotFound: there is no such entry.
        InvalidRequest: a path is not allowed, or the target is a directory.
        NoSpace: there is no room at the other place.
    """
    return _entry_of(await _ask(place, {"op": "move", "path": _named(source), "to": _named(target)}))


async def delete_file(place: Place, path: str) -> None:
    """Delete a file, link or directory.

    Raises:
        FileNotFound: there is no such entry.
        InvalidRequest: the path is not allowed.
    """
    await _ask(place, {"op": "delete", "path": _named(path)})


@asynccontextmanager
async def read_file(place: Place, path: str) -> AsyncIterator[OpenFile]:
    """Open a regular file.

    Raises:
        FileNotFound: there is no such file.
        InvalidRequest: the path is not allowed, or what is there is no regular file.
    """
    argument = orjson.dumps({"op": "read", "path": sandbox_path(path)}).decode()
    async with aclosing(place.run_tool("files", argument)) as output:
        answer, rest = await first_line(output)
        size = _done(answer).get("size")
        if type(size) is not int or size < 0:
            raise ConnectionFailed("the sandbox gave no valid answer")
        yield OpenFile(size, _exactly(size, rest, output))


async def _exactly(size: int, first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Not more bytes than were announced, whatever the sandbox sends."""
    piece = first[:size]
    while True:
        if piece:
            yield piece
        size -= len(piece)
        if size <= 0:
            return
        try:
            piece = (await anext(rest))[:size]
        except StopAsyncIteration:
            raise ConnectionFailed("the file ended early") from None


async def _ask(place: Place, request: dict[str, Any], stdin: AsyncIterable[bytes] | None = None) -> dict[str, Any]:
    return _done(await ask(place, "files", request, stdin))


def _done(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        _refuse(str(answer["error"]))
    return answer


def _refuse(word: str) -> NoReturn:
    match word:
        case "absent":
            raise FileNotFound
        case "full":
            raise NoSpace
        case "outside" | "link":
            raise InvalidRequest("path leads out of the workspace", field="path")
        case "directory":
            raise InvalidRequest("path names a directory", field="path")
        case "exists":
            raise InvalidRequest("something else is at this path already", field="path")
        case "special":
            raise InvalidRequest("path names neither a file nor a directory", field="path")
        case "incomplete":
            raise InvalidRequest("the content is shorter than announced", field="body")
        case "denied":
            raise InvalidRequest("the sandbox's user may not do this", field="path")
        case _:
            raise InvalidRequest("the path cannot be used", field="path")
