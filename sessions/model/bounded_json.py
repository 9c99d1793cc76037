"""Reads JSON that clients and kernels send. JSON of very many values is refused before it is parsed.

Parsing blocks the event loop, and a parsed value takes far more memory than its text: the 1.4 million empty lists in
4 MiB take 0.4 s and 80 MiB. Code that looks at the values afterwards takes as long again.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

#: lists, objects and keys of objects, each of which is an object of Python; they take about 40 ms
CONTAINERS_MAX = 200_000
#: other values; they take about 20 ms
ELEMENTS_MAX = 1_000_000
#: bytes at the beginning and at the end of a picture's message that are more than the picture
_EDGE = 4096
#: bytes at the beginning that are looked at first: what has too many values has them there, too, as a rule
_HEAD = 1024**2
#: A string, closed or not, and all that follows a backslash between strings, which no JSON has. Whatever begins here
#: matches, so nothing is read twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|\\.*+', re.DOTALL)


class TooManyValues(orjson.JSONDecodeError):
    """The JSON has too many values."""


def loads(text: bytes | bytearray | str) -> Any:
    """Parse JSON.

    Raises:
        TooManyValues: as `check`.
        orjson.JSONDecodeError: when it is no JSON.
    """
    check(text)
    return orjson.loads(text)


def check(text: bytes | bytearray | str) -> None:
    """Check that there are few enough values; the text may be no JSON at all.

    Raises:
        TooManyValues: when it has more than `CONTAINERS_MAX` lists, objects and keys, or more than `ELEMENTS_MAX`
            values.
    """
    if len(text) > CONTAINERS_MAX and not _few(text.encode() if isinstance(text, str) else text):
        most = f"{CONTAINERS_MAX} lists, objects and keys, or {ELEMENTS_MAX} values"
        raise TooManyValues(f"it has more than {most}", "", 0)


def _few(text: bytes | bytearray) -> bool:
    """Return whether the values are few enough. Only a long text with many commas or brackets takes a second look."""
    looks = (text[:_HEAD], text) if len(text) > _HEAD else (text,)
    return all(map(_within, looks)) or all(map(_few_outside_strings, looks))


def _few_outside_strings(text: bytes | bytearray) -> bool:
    # A string begins with a quote without a backslash before it, so this is at least the number of strings.
    if text.count(b'"') - text.count(b'\\"') > 2 * CONTAINERS_MAX:
        return False
    return _within(_STRING.sub(b"", text))


def _within(text: bytes | bytearray) -> bool:
    containers = _count(text, b"[") + _count(text, b"{") + _count(text, b":")
    return containers <= CONTAINERS_MAX and _count(text, b",") <= ELEMENTS_MAX


def _count(text: bytes | bytearray, sign: bytes) -> int:
    """Count a sign. In a picture, which is one long string, it is searched first: that is much faster than counting."""
    end = max(_EDGE, len(text) - _EDGE)
    if text.find(sign, _EDGE, end) >= 0:
        return text.count(sign)
    return text.count(sign, 0, _EDGE) + text.count(sign, end)
