"""What changes in a directory of a sandbox; `kernel_image/watching.py` looks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from kernel_image.protocol import TREE_MAX, WATCHING_TOOL
from sessions.guest.paths import sandbox_path
from sessions.guest.refusals import refuse
from sessions.guest.tools import ANSWER_MAX, ToolRunner, lines_of
from sessions.model import bounded_json
from sessions.model.errors import ConnectionFailed, InvalidRequest, QuotaExceeded

#: what may happen to an entry. One with another name: `rename` for the old one, `create` for the new one
KINDS = frozenset({"create", "write", "remove", "rename", "chmod"})
#: changes of one look: an entry may be removed, made again, written, and have another mode
CHANGES_MAX = 4 * TREE_MAX
#: line that asks for a look
ASK = b"\n"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to an entry of a watched directory."""

    #: one of `KINDS`
    kind: str
    #: path of the entry, relative to the watched directory
    path: str


async def watch(
    host: ToolRunner, path: str, asks: AsyncIterable[bytes], *, recursive: bool, every: float | None
) -> AsyncGenerator[list[Change], None]:
    """Watch a directory, and yield what has changed since the last time. Closing the generator ends it.

    The first list is empty: from then on the directory is watched. What is made and removed between two looks is not
    seen. What changes in a directory that is gone is seen as soon as there is one at its path again.

    Args:
        host: sandbox of the directory.
        path: path of the directory, as processes in the sandbox write it.
        asks: an `ASK` for each list that is yielded although it may be empty.
        recursive: True: also all directories below it.
        every: seconds between two looks; None: look only when asked.

    Raises:
        FileNotFound: when there is no such directory at first.
        InvalidRequest: when the path is not allowed, or names no directory.
        QuotaExceeded: when it has, or gets, too many entries.
        ConnectionFailed: when the sandbox has ended, or gives no valid answer.
    """
    request = orjson.dumps({"path": sandbox_path(path), "recursive": recursive, "every": every})
    async with aclosing(host.run_tool(WATCHING_TOOL, request.decode(), asks)) as output:
        async for line in lines_of(output, ANSWER_MAX):
            if (found := _changes(line)) is not None:
                yield found
    raise ConnectionFailed("the sandbox ended while a directory was watched")


def _changes(line: bytes) -> list[Change] | None:
    """Return what a line of the tool says; None: it is a sign of life."""
    try:
        said = bounded_json.loads(line)
    except orjson.JSONDecodeError:
        said = None
    match said:
        case {"error": "file"}:
            raise InvalidRequest("path names no directory", field="path")
        case {"error": "many"}:
            raise QuotaExceeded(f"a watched directory may have at most {TREE_MAX} entries", max=TREE_MAX)
        case {"error": word}:
            refuse(str(word))
        case {"changes": list(items)} if len(items) <= CHANGES_MAX:
            return [_change(item) for item in items]
        case {}:
            return None
    raise ConnectionFailed("the sandbox gave no valid answer")


def _change(item: object) -> Change:
    match item:
        case [str(kind), str(path)] if kind in KINDS:
            return Change(kind, path)
    raise ConnectionFailed("the sandbox gave no valid answer")
