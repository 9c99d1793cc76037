"""Searches files by name and by content, with the same user as user code, in its workspace (the current directory).

The only argument is JSON: `{"op": "grep" | "glob" | "names" | "matches", "path": …}` and further keys of the operation.
The answer is one line of JSON. Paths of the answer are relative to the searched directory. Links are not followed.
A search that takes too long is ended by the system, without an answer: a regular expression may run for ever.
Standard library only.
"""

from __future__ import annotations

import fnmatch
import heapq
import io
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.copying import open_regular
from kernel_image.entries import each_below
from kernel_image.file_names import name_of, text_of
from kernel_image.protocol import SEARCH_SECONDS, TRUNCATED
from kernel_image.walk import Place, Refused, descend, find, refusal

#: maximum levels and entries of a search; further ones are not looked at
DEPTH_MAX = 64
ENTRIES_MAX = 100_000
#: maximum bytes of a file whose content is searched, and characters of a line in an answer
FILE_MAX = 32 * 1024**2
LINE_MAX = 2000
#: maximum lines of a file in the answer of `matches`
PER_FILE = 3

#: path of an entry below the searched directory, and its status
Found = tuple[list[str], os.stat_result]


def main(argument: str, _stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the search that the JSON text `argument` describes."""
    signal.setitimer(signal.ITIMER_REAL, SEARCH_SECONDS)  # Python has no handler, so the system ends the process
    request = json.loads(argument)
    try:
        with find(name_of(request["path"])) as place:
            answer = _OPERATIONS[request["op"]](request, place)
    except (Refused, OSError) as error:
        answer = refusal(error)
    except re.error as error:
        answer = {"error": "pattern", "reason": str(error)}
    stdout.write(json.dumps(answer).encode() + b"\n")
    stdout.flush()


def _grep(request: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return the lines, or the files, in which the pattern is found."""
    wanted = request["query"] if request["regex"] else re.escape(request["query"])
    pattern = _compile(wanted, re.IGNORECASE if request["ignore_case"] else 0)
    matches: list[dict[str, Any]] = []
    for way, directory, name in _files(place, request["include"]):
        for number, line in _lines(directory, name):
            if not pattern.search(line):
                continue
            matches.append(
                {"file": _path(way), "line": number, "content": line.rstrip("\r\n")[:LINE_MAX]}
                if request["per_line"]
                else {"file": _path(way)}
            )
            if len(matches) >= request["limit"]:
                return {"matches": matches, TRUNCATED: True}
            if not request["per_line"]:
                break
    return {"matches": matches, TRUNCATED: False}


def _compile(wanted: str, flags: int) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        re.error: when it is none, or has too large numbers or too many groups in each other for Python.
    """
    try:
        return re.compile(wanted, flags)
    except (OverflowError, RecursionError, ValueError) as error:
        raise re.error(str(error)) from error


def _glob(request: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return the entries whose name or path fits the pattern."""
    fits, excluded = _fits([request["pattern"]]), _fits(request["exclude"])
    matches: list[dict[str, Any]] = []
    for way, info in _entries(place):
        if not _is_wanted(info, request["type"]) or not fits(way) or excluded(way):
            continue
        matches.append({"path": _path(way), "type": _type(info), "size": info.st_size, "modified": info.st_mtime})
        if len(matches) >= request["limit"]:
            return {"matches": matches, TRUNCATED: True}
    return {"matches": matches, TRUNCATED: False}


def _names(request: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return the entries whose name contains the text, the best first."""
    wanted = request["query"].strip().lower()

    def ranked() -> Iterator[tuple[int, int, str, dict[str, Any]]]:
        for way, info in _entries(place, hidden=request["hidden"]):
            name = text_of(way[-1]).lower()
            if _is_wanted(info, request["type"]) and wanted in name:
                told = {"path": _path(way), "type": _type(info), "size": info.st_size, "modified": info.st_mtime}
                yield _rank(name, wanted), len(name), _path(way).lower(), told

    best = heapq.nsmallest(request["limit"], ranked(), key=lambda each: each[:3])
    return {"matches": [each[3] for each in best], TRUNCATED: False}


def _matches(request: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return the entries whose name, path or content contains the text, the best first."""
    wanted = request["query"].strip().lower()

    def ranked() -> Iterator[tuple[int, int, str, dict[str, Any]]]:
        for way, info in _entries(place, hidden=request["hidden"]):
            path = _path(way)
            rank = _rank(text_of(way[-1]).lower(), wanted)
            if rank > 2 and wanted in path.lower():  # noqa: PLR2004 - the rank of a name that does not contain it
                rank = 3
            lines = _lines_with(place, way, wanted) if stat.S_ISREG(info.st_mode) else []
            if rank <= 3 or lines:  # noqa: PLR2004 - as above
                told = {"path": path, "type": _type(info), "name_match": rank <= 3, "lines": lines}  # noqa: PLR2004
                yield rank, len(path), path.lower(), told

    end = request["offset"] + request["limit"]
    best = heapq.nsmallest(end + 1, ranked(), key=lambda each: each[:3])
    return {"matches": [each[3] for each in best[request["offset"] : end]], TRUNCATED: len(best) > end}


_OPERATIONS = {"grep": _grep, "glob": _glob, "names": _names, "matches": _matches}


# -- entries ---------------------------------------------------------------------------------------------------


def _entries(place: Place, *, hidden: bool = True) -> Iterator[Found]:
    """Yield the entries below a directory.

    Raises:
        OSError: when the place is no directory.
    """
    for number, (way, info) in enumerate(each_below(place, DEPTH_MAX)):
        if number == ENTRIES_MAX:
            return
        if hidden or not any(name.startswith(".") for name in way):
            yield way, info


def _files(place: Place, include: list[str]) -> Iterator[tuple[list[str], int, str]]:
    """Yield the files to search: the way from the place, a descriptor of the file's directory, and its name.

    Args:
        place: a directory, or one file.
        include: patterns of which the name of a file in a directory must fit one. Empty means every file.
    """
    if not place.is_directory:
        yield [], place.directory, place.name
        return
    fits = _fits(include)
    for way, info in _entries(place):
        if stat.S_ISREG(info.st_mode) and (not include or fits(way[-1:])):
            with _Below(place, way) as directory:
                if directory is not None:
                    yield way, directory, way[-1]


class _Below:
    """The open directory of an entry below a place; None if it was removed since it was listed."""

    def __init__(self, place: Place, way: list[str]) -> None:
        self._place = place
        self._way = way
        self._directory: int | None = None

    def __enter__(self) -> int | None:
        try:
            self._directory = descend(self._place.directory, [self._place.name, *self._way[:-1]])
        except OSError:
            self._directory = None
        return self._directory

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            os.close(self._directory)


def _lines(directory: int, name: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text. Other files, large ones and those that cannot be read have none."""
    try:
        with open(open_regular(directory, name), "rb") as file:  # closes the descriptor, too
            if os.fstat(file.fileno()).st_size > FILE_MAX:
                return
            text = file.read(FILE_MAX).decode()
    except (OSError, Refused, UnicodeDecodeError):
        return
    if "\0" not in text:
        yield from enumerate(io.StringIO(text, newline=None), 1)


def _lines_with(place: Place, way: list[str], wanted: str) -> list[dict[str, Any]]:
    """Return the first lines of a file that contain a text, with the column at which it begins."""
    found: list[dict[str, Any]] = []
    with _Below(place, way) as directory:
        for number, line in _lines(directory, way[-1]) if directory is not None else ():
            if (at := line.lower().find(wanted)) >= 0:
                column = len(line[:at].encode("utf-16-le")) // 2 + 1
                found.append({"line": number, "column": column, "text": line.rstrip("\r\n")[:LINE_MAX]})
                if len(found) == PER_FILE:
                    break
    return found


# -- names -----------------------------------------------------------------------------------------------------


def _fits(patterns: list[str]) -> Callable[[list[str]], bool]:
    """Return a function that says whether the name or the path of an entry fits one of the patterns."""
    compiled = [re.compile(fnmatch.translate(pattern)) for pattern in patterns]
    return lambda way: any(each.match(way[-1]) or each.match("/".join(way)) for each in compiled)


def _rank(name: str, wanted: str) -> int:
    """Return 0 for the name itself, 1 for its beginning, 2 for a part of it, and 4 for no part of it."""
    return 0 if name == wanted else 1 if name.startswith(wanted) else 2 if wanted in name else 4


def _is_wanted(info: os.stat_result, kind: str) -> bool:
    return kind in {"any", _type(info)}


def _type(info: os.stat_result) -> str:
    return "directory" if stat.S_ISDIR(info.st_mode) else "file"


def _path(way: list[str]) -> str:
    return text_of("/".join(way))


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
