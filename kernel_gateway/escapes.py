"""Escape sequences for terminals, such as colours, which other readers do not want."""

from __future__ import annotations

import re

#: Source: ECMA-48: control sequences, operating system commands, and other escape sequences
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")


def without_escapes(text: str) -> str:
    """Return a text without its escape sequences."""
    return _ESCAPE.sub("", text)
