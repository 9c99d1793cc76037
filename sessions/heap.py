"""Returns freed memory to the system.

The C library keeps freed memory for later use. After a few large outputs that is a hundred megabytes, which a gateway
would hold for as long as it runs.
"""

from __future__ import annotations

import ctypes

#: function of glibc; other C libraries return memory on their own
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim_heap() -> None:
    """Return freed memory to the system. It takes some milliseconds, in which other threads continue."""
    if _trim is not None:
        _trim(0)
