"""Reports changes in a directory of a sandbox. `kernel_image/watching.py` is the tool that looks for them."""

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

#: kinds of changes of an entry. An entry that gets another name is `rename` for the old path, `create` for the new one.
KINDS = frozenset({"create", "write", "remove", "rename", "chmod"})
#: maximum changes between two looks: each entry may be removed, made again, written, and get another mode
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
    runner: ToolRunner, path: str, asks: AsyncIterable[bytes], *, recursive: bool, every: float | None
) -> AsyncGenerator[list[Change], None]:
    """Watch a directory, and yield its changes since the last look. Closing the generator ends the watch.

    The first list is empty, and means that the directory is now watched. An entry that is made and removed between two
    looks is not reported. If the directory itself is removed, and made again later, its changes are reported then.

    Args:
        runner: sandbox of the directory.
        path: path of the directory, as processes in the sandbox write it.
        asks: an `ASK` for each look that the caller asks for; the answer is yielded even if nothing has changed.
        recursive: whether all directories below it are watched, too.
        every: seconds between two looks. None means to look only when asked.

    Raises:
        FileNotFound: when the directory does not exist at the beginning.
        InvalidRequest: when the path is not allowed, or names no directory.
        QuotaExceeded: when the directory has too many entries, at the beginning or later.
        ConnectionFailed: when the sandbox has ended, or gives no valid answer.
    """
    request = orjson.dumps({"path": sandbox_path(path), "recursive": recursive, "every": every})
    async with aclosing(runner.run_tool(WATCHING_TOOL, request.decode(), asks)) as output:
        async for line in lines_of(output, ANSWER_MAX):
            if (found := _changes(line)) is not None:
                yield found
    raise ConnectionFailed("the sandbox ended while a directory was watched")


def _changes(line: bytes) -> list[Change] | None:
    """Parse a line of the tool. None means that the line only shows that the tool is alive."""
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
