"""Reads JSON that clients and kernels send. JSON with too many values is refused before it is parsed.

Parsing blocks the event loop, and a parsed value takes far more memory than its text: the 1.4 million empty lists in
4 MiB take 0.4 s and 80 MiB. Code that looks at the values afterwards takes as long again.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

#: lists, objects and keys of objects, each of which is an object of Python; they take about 40 ms
CONTAINERS_MAX = 200_000
#: all other values; they take about 20 ms
ELEMENTS_MAX = 1_000_000
#: A message with a picture has JSON around the picture: at most so many bytes at its beginning and at its end.
_EDGE = 4096
#: bytes at the beginning that are counted first: JSON with too many values usually has too many there already
_HEAD = 1024**2
#: A string, closed or not. A backslash between strings is not valid JSON, so the whole rest of the text matches there.
#: Every attempt to match succeeds, so no byte is read twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|\\.*+', re.DOTALL)


class TooManyValues(orjson.JSONDecodeError):
    """The JSON has too many values."""


def loads(text: bytes | bytearray | str) -> Any:
    """Parse JSON.

    Raises:
        TooManyValues: as in `check`.
        orjson.JSONDecodeError: when the text is no JSON.
    """
    check(text)
    return orjson.loads(text)


def check(text: bytes | bytearray | str) -> None:
    """Check that a text has few enough values. The text need not be valid JSON.

    Raises:
        TooManyValues: when the text has more than `CONTAINERS_MAX` lists, objects and keys, or more than
            `ELEMENTS_MAX` values.
    """
    if len(text) > CONTAINERS_MAX and not _few(text.encode() if isinstance(text, str) else text):
        most = f"{CONTAINERS_MAX} lists, objects and keys, or {ELEMENTS_MAX} values"
        raise TooManyValues(f"it has more than {most}", "", 0)


def _few(text: bytes | bytearray) -> bool:
    """Return whether the text has few enough values. Strings are removed only if the raw text has too many signs."""
    looks = (text[:_HEAD], text) if len(text) > _HEAD else (text,)
    return all(map(_within, looks)) or all(map(_few_outside_strings, looks))


def _few_outside_strings(text: bytes | bytearray) -> bool:
    # A string begins with a quote that has no backslash before it, so this is at least the number of strings.
    if text.count(b'"') - text.count(b'\\"') > 2 * CONTAINERS_MAX:
        return False
    return _within(_STRING.sub(b"", text))


def _within(text: bytes | bytearray) -> bool:
    containers = _count(text, b"[") + _count(text, b"{") + _count(text, b":")
    return containers <= CONTAINERS_MAX and _count(text, b",") <= ELEMENTS_MAX


def _count(text: bytes | bytearray, sign: bytes) -> int:
    """Count a character. The middle of a text is searched first: in a picture, that is much faster than counting."""
    end = max(_EDGE, len(text) - _EDGE)
    if text.find(sign, _EDGE, end) >= 0:
        return text.count(sign)
    return text.count(sign, 0, _EDGE) + text.count(sign, end)
