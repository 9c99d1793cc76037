"""Reads files of a session or sandbox, whole or in part."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from kernel_image.protocol import FILES_TOOL
from sessions.guest.paths import sandbox_path
from sessions.guest.refusals import accepted
from sessions.guest.tools import WorkspaceOwner, first_line
from sessions.model.errors import ConnectionFailed

#: form of a file's tag
TAG = re.compile("[0-9a-f-]{1,100}")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file that a client wants to read."""

    #: number of the first byte, from 0. A negative number counts from the file's end.
    start: int
    #: maximum number of bytes. None means up to the file's end.
    count: int | None
    #: tag that the file must have. If the file has another tag, the whole file is read. None means any tag.
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is being read."""

    #: bytes of the whole file
    size: int
    #: time of the last change, in seconds since 1970
    modified: float
    #: text in the form of `TAG`, which changes with the file's content
    tag: str
    #: number of the first byte that is read
    start: int
    #: number of bytes that are read
    count: int
    content: AsyncIterator[bytes]
    #: whether only the wanted part is read, and not the whole file
    partial: bool


@asynccontextmanager
async def read_file(owner: WorkspaceOwner, path: str, part: Part | None = None) -> AsyncIterator[OpenFile]:
    """Open a regular file for reading, inside the `with` block.

    Args:
        owner: session or sandbox of the file.
        path: path of the file.
        part: the part to read. None means the whole file.

    Raises:
        FileNotFound: when the file does not exist.
        InvalidRequest: when the path is not allowed, or names no regular file.
    """
    request: dict[str, Any] = {"op": "read", "path": sandbox_path(path)}
    if part is not None:
        request |= {"part": (part.start, part.count), "tag": part.tag}
    async with aclosing(owner.run_tool(FILES_TOOL, orjson.dumps(request).decode())) as output:
        answer, rest = await first_line(output)
        match accepted(answer):
            case {
                "size": int() as size,
                "modified": int() | float() as modified,
                "tag": str() as tag,
                "start": int() as start,
                "count": int() as count,
                "partial": bool() as partial,
            } if _is_possible(size, start, count, tag):
                yield OpenFile(size, modified, tag, start, count, _exactly(count, rest, output), partial)
            case _:
                raise ConnectionFailed("the sandbox gave no valid answer")


def _is_possible(size: int, start: int, count: int, tag: str) -> bool:
    if any(type(number) is bool or number < 0 for number in (size, start, count)):
        return False
    return start + count <= size and TAG.fullmatch(tag) is not None


async def _exactly(size: int, first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield exactly the announced bytes, even if the sandbox sends more."""
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
