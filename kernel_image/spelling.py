"""How the name of an entry is spelt as text, so that JSON, URLs and every client can have it, and give it back.

A name on Linux is bytes. One that is UTF-8 is spelt as it reads. A byte that belongs to no character is a lone
surrogate in Python, U+DC80 to U+DCFF, which is no text: here a character for private use stands for it, U+10DC80 to
U+10DCFF. A name that really has one of these characters is spelt byte by byte in the same way, so no two names are
spelt alike.
"""

from __future__ import annotations

import re

_SHIFT = 0x100000
_SURROGATES = range(0xDC80, 0xDD00)
_SPELT = {code: code + _SHIFT for code in _SURROGATES}
_NAMED = {code + _SHIFT: code for code in _SURROGATES}
_STANDS_FOR_A_BYTE = re.compile("[\U0010dc80-\U0010dcff]")


def spelt(name: str) -> str:
    """Return a name or path of the file system as text."""
    return _STANDS_FOR_A_BYTE.sub(lambda found: found[0].encode().decode("ascii", "surrogateescape"), name).translate(
        _SPELT
    )


def named(text: str) -> str:
    """Return the name or path that is spelt so, as Python's calls take it."""
    return text.translate(_NAMED)
