"""Searches the files of a workspace with the tool `kernel_image/searching.py`, by their names and by their content.

The tool runs in the sandbox, so a regular expression that never ends takes the sandbox's time and not the gateway's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel_image.protocol import SEARCH_SECONDS, SEARCHING_TOOL, TRUNCATED
from sessions.guest.paths import sandbox_path
from sessions.guest.refusals import accepted
from sessions.guest.tools import ToolRunner, ask
from sessions.model.errors import ConnectionFailed, ExecutionTimeout, InvalidRequest

#: the fields of a found entry, and their types; see the tool
_ENTRY: Mapping[str, type | tuple[type, ...]] = {
    "path": str, "type": str, "size": int, "modified": (int, float),
}  # fmt: skip
_LINE: Mapping[str, type | tuple[type, ...]] = {"line": int, "column": int, "text": str}


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search has found."""

    #: the findings, as the tool describes them. Their paths are relative to the searched directory
    matches: list[dict[str, Any]]
    #: whether there may be more
    truncated: bool


async def grep(
    runner: ToolRunner,
    path: str,
    query: str,
    *,
    regex: bool,
    ignore_case: bool,
    include: Sequence[str],
    per_line: bool,
    limit: int,
) -> Findings:
    """Return the lines that contain a text: `file`, `line` (from 1) and `content`. Only texts are searched.

    Args:
        runner: sandbox with the files.
        path: directory, or one file.
        query: the text, or a regular expression of Python.
        regex: whether `query` is a regular expression.
        ignore_case: whether upper and lower case are the same.
        include: patterns of which the name of a file must fit one. Empty means every file.
        per_line: False to return only the files.
        limit: maximum number of findings.

    Raises:
        InvalidRequest: when the path is not allowed, or the query is no regular expression.
        FileNotFound: when there is nothing at the path.
        ExecutionTimeout: when the search takes too long.
    """
    request = {"op": "grep", "query": query, "regex": regex, "ignore_case": ignore_case, "include": list(include)}
    form: dict[str, type | tuple[type, ...]] = {"file": str}
    if per_line:
        form |= {"line": int, "content": str}
    return await _search(runner, path, request | {"per_line": per_line, "limit": limit}, form)


async def glob(
    runner: ToolRunner, path: str, pattern: str, *, exclude: Sequence[str], kind: str, limit: int
) -> Findings:
    """Return the entries whose name or path fits a pattern: `path`, `type`, `size` and `modified`.

    Args:
        runner: sandbox with the files.
        path: directory.
        pattern: pattern of a shell, such as `*.py`.
        exclude: patterns of entries to leave out.
        kind: `file`, `directory` or `any`.
        limit: maximum number of findings.

    Raises:
        SessionError: as in `grep`.
    """
    request = {"op": "glob", "pattern": pattern, "exclude": list(exclude), "type": kind, "limit": limit}
    return await _search(runner, path, request, _ENTRY)


async def find_names(runner: ToolRunner, path: str, query: str, *, kind: str, hidden: bool, limit: int) -> Findings:
    """Return the entries whose name contains a text, the best first, in the form of `glob`.

    Args:
        runner: sandbox with the files.
        path: directory.
        query: the text. Case makes no difference.
        kind: `file`, `directory` or `any`.
        hidden: whether entries in hidden directories, and hidden entries, are found, too.
        limit: maximum number of findings.

    Raises:
        SessionError: as in `grep`.
    """
    request = {"op": "names", "query": query, "type": kind, "hidden": hidden, "limit": limit}
    return await _search(runner, path, request, _ENTRY)


async def find_matches(runner: ToolRunner, path: str, query: str, *, hidden: bool, offset: int, limit: int) -> Findings:
    """Return the entries whose name, path or content contains a text, the best first.

    A finding has `path`, `type`, `name_match`, and `lines` with `line`, `column` and `text`.

    Args:
        runner: sandbox with the files.
        path: directory.
        query: the text. Case makes no difference.
        hidden: as in `find_names`.
        offset: number of findings to leave out.
        limit: maximum number of findings.

    Raises:
        SessionError: as in `grep`.
    """
    request = {"op": "matches", "query": query, "hidden": hidden, "offset": offset, "limit": limit}
    found = await _search(runner, path, request, {"path": str, "type": str, "name_match": bool, "lines": list})
    if not all(_has(line, _LINE) for match in found.matches for line in match["lines"]):
        raise ConnectionFailed("the sandbox gave no valid answer")
    return found


async def _search(
    runner: ToolRunner, path: str, request: dict[str, Any], form: Mapping[str, type | tuple[type, ...]]
) -> Findings:
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        answer = await ask(runner, SEARCHING_TOOL, request | {"path": sandbox_path(path)})
    except ConnectionFailed:
        if clock() - began < SEARCH_SECONDS:
            raise
        raise ExecutionTimeout(f"the search took longer than {SEARCH_SECONDS:g} s", timeout=SEARCH_SECONDS) from None
    if answer.get("error") == "pattern":
        raise InvalidRequest(f"this is no regular expression: {str(answer.get('reason'))[:200]}", field="query")
    matches = accepted(answer).get("matches")
    if not isinstance(matches, list) or not all(_has(match, form) for match in matches):
        raise ConnectionFailed("the sandbox gave no valid answer")
    return Findings(matches, answer.get(TRUNCATED) is True)


def _has(value: object, form: Mapping[str, type | tuple[type, ...]]) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in form.items())
