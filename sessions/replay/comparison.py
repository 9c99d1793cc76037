"""Compares the outputs of a cell with those that it had before. Pure.

What is compared: the whole text on stdout, and on stderr; of each display and of the result, the content of each media
type; of an error, its name and its text. What is not compared, because it differs without a cause in the code:
addresses of memory, tracebacks, numbers of cells, metadata, and the order of stdout, stderr and displays among one
another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sessions.model import exact_json

#: maximum differences that are told of one cell, and characters of each text in them
DIFFERENCES_MAX, TEXT_MAX = 5, 300
#: maximum characters of what a difference is in: a kernel may name any media type
WHERE_MAX = 100

_PIECE = 4096
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a cell's output that is another one now."""

    #: `stdout`, `stderr`, `error`, or the number of a display and its media type
    where: str
    #: text from the first line that differs. None means that there was no such output.
    before: str | None
    after: str | None


def differences(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """Return the differences between two lists of nbformat outputs, at most `DIFFERENCES_MAX`."""
    old, new = _parts(before), _parts(after)
    other = [where for where in old | new if old.get(where) != new.get(where)]
    return [_difference(where, old.get(where), new.get(where)) for where in other[:DIFFERENCES_MAX]]


def _parts(outputs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the comparable texts of a cell's outputs, by what they are in."""
    pieces: dict[str, list[str]] = {}
    displays = 0
    for output in outputs:
        match output.get("output_type"):
            case "stream":
                pieces.setdefault(str(output.get("name")), []).append(_text(output.get("text")))
            case "error":
                pieces.setdefault("error", []).append(f"{_text(output.get('ename'))}: {_text(output.get('evalue'))}")
            case "display_data" | "execute_result":
                displays += 1
                data = output.get("data")
                for mime, content in data.items() if isinstance(data, dict) else ():
                    pieces[f"display {displays}: {mime}"] = [_text(content)]
    return {where: _ADDRESS.sub("0x…", "".join(texts)) for where, texts in pieces.items()}


def _text(content: object) -> str:
    """Return a content of nbformat as text: it may be a text, a list of lines, or JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(line, str) for line in content):
        return "".join(content)
    return exact_json.dumps(content).decode()


def _difference(where: str, before: str | None, after: str | None) -> Difference:
    old, new = before or "", after or ""
    first = _first_difference(old, new)
    line = old.rfind("\n", 0, first) + 1
    return Difference(where[:WHERE_MAX], _excerpt(before, line, first), _excerpt(after, line, first))


def _first_difference(old: str, new: str) -> int:
    """Return where two different texts begin to differ. Long texts are compared piece by piece."""
    most = min(len(old), len(new))
    piece = next((at for at in range(0, most, _PIECE) if old[at : at + _PIECE] != new[at : at + _PIECE]), most)
    return next((at for at in range(piece, most) if old[at] != new[at]), most)


def _excerpt(text: str | None, line: int, first: int) -> str | None:
    """Return the part of a text that begins with the line of the first difference, or near it in a long line."""
    if text is None:
        return None
    start = max(line, first - TEXT_MAX // 2)
    part = text[start : start + TEXT_MAX]
    return ("…" if start > line else "") + part + ("…" if len(text) > start + TEXT_MAX else "")
