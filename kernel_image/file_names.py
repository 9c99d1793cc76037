"""Converts names of files to text for JSON and URLs, and back, so that clients can use every name.

On Linux a name is a sequence of bytes. If the name is UTF-8, it becomes that text. Python represents a byte that is not
UTF-8 as a lone surrogate, U+DC80 to U+DCFF, which is not valid text; here it becomes a private-use character, U+10DC80
to U+10DCFF. If a name really contains such a private-use character, each byte of the character is converted in the same
way, so two different names never become the same text.
"""

from __future__ import annotations

import re

_SHIFT = 0x100000
_SURROGATES = range(0xDC80, 0xDD00)
_SPELT = {code: code + _SHIFT for code in _SURROGATES}
_NAMED = {code + _SHIFT: code for code in _SURROGATES}
_STANDS_FOR_A_BYTE = re.compile("[\U0010dc80-\U0010dcff]")


def text_of(name: str) -> str:
    """Convert a name or path of the file system to text."""
    return _STANDS_FOR_A_BYTE.sub(lambda found: found[0].encode().decode("ascii", "surrogateescape"), name).translate(
        _SPELT
    )


def name_of(text: str) -> str:
    """Convert text that `text_of` has made back to the name or path for Python's functions."""
    return text.translate(_NAMED)
