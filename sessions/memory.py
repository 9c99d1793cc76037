"""Gives freed memory back to the system.

The C library keeps what is freed for the next time: after a few large outputs that is a hundred megabytes, which a
gateway would hold for as long as it runs.
"""

from __future__ import annotations

import ctypes

#: glibc's; other C libraries give back by themselves
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Do it. It takes some milliseconds, in which other threads go on."""
    if _trim is not None:
        _trim(0)
