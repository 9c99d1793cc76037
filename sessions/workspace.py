"""Files of a session: path rules and size limits.

A session's files are only ever touched by `kernel_image/files.py`, which runs beside the kernel as its user:
paths are resolved in the sandbox, so a trick with links or names meets the sandbox's own files at most.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from sessions.errors import ConnectionFailed, FileNotFound, InvalidRequest, NoSpace
from sessions.session import Session

PATH_MAX = 1024
#: what an entry of a directory can be
KINDS = frozenset({"file", "directory", "link", "special"})
#: bytes of the tool's first line, which holds a listing
ANSWER_MAX = 8 * 1024**2


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


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is being read."""

    size: int
    content: AsyncIterator[bytes]


async def list_files(session: Session, path: str) -> list[dict[str, Any]]:
    """The entries of a directory: name, type (file, directory, link, special), size, modified (seconds).

    Raises:
        FileNotFound: there is no such directory.
        InvalidRequest: the path is not allowed.
    """
    answer = await _ask(session, {"op": "list", "path": valid_path(path)})
    entries = answer.get("entries")
    return [entry for entry in entries if _is_entry(entry)] if isinstance(entries, list) else []


def _is_entry(value: object) -> bool:
    match value:
        case {"name": str(), "type": str() as kind, "size": int(), "modified": int() | float()}:
            return kind in KINDS
    return False


async def write_file(session: Session, path: str, size: int, content: AsyncIterable[bytes]) -> None:
    """Write a file of `size` bytes, all or nothing; directories on the way are made.

    Raises:
        InvalidRequest: the path is not allowed, or the content is shorter than `size`.
        NoSpace: it does not fit.
    """
    if not (path := valid_path(path)):
        raise InvalidRequest("path names no file", field="path")
    if size > session.spec.limits.disk:
        raise NoSpace(f"the file is larger than the workspace ({session.spec.limits.disk} bytes)", size=size)
    await _ask(session, {"op": "write", "path": path, "size": size}, content)


async def delete_file(session: Session, path: str) -> None:
    """Delete a file, link or directory.

    Raises:
        FileNotFound: there is no such entry.
        InvalidRequest: the path is not allowed.
    """
    if not (path := valid_path(path)):
        raise InvalidRequest("path names no file", field="path")
    await _ask(session, {"op": "delete", "path": path})


@asynccontextmanager
async def read_file(session: Session, path: str) -> AsyncIterator[OpenFile]:
    """Open a regular file.

    Raises:
        FileNotFound: there is no such file.
        InvalidRequest: the path is not allowed, or what is there is no regular file.
    """
    argument = orjson.dumps({"op": "read", "path": valid_path(path)}).decode()
    async with aclosing(session.run_tool("files", argument)) as output:
        answer, rest = await _first_line(output)
        size = answer.get("size")
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


async def _ask(session: Session, request: dict[str, Any], stdin: AsyncIterable[bytes] | None = None) -> dict[str, Any]:
    async with aclosing(session.run_tool("files", orjson.dumps(request).decode(), stdin)) as output:
        return (await _first_line(output))[0]


async def _first_line(output: AsyncGenerator[bytes, None]) -> tuple[dict[str, Any], bytes]:
    """The tool's answer, and what already came after it."""
    seen = b""
    async for piece in output:
        seen += piece
        line, found, rest = seen.partition(b"\n")
        if found:
            return _answer(line), rest
        if len(seen) > ANSWER_MAX:
            break
    raise ConnectionFailed("the sandbox gave no valid answer")


def _answer(line: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(line)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ConnectionFailed("the sandbox gave no valid answer")
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
        case "special":
            raise InvalidRequest("path names neither a file nor a directory", field="path")
        case "incomplete":
            raise InvalidRequest("the content is shorter than announced", field="body")
        case "denied":
            raise InvalidRequest("the sandbox's user may not do this", field="path")
        case _:
            raise InvalidRequest("the path cannot be used", field="path")
