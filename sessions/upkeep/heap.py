"""How the C library keeps freed memory.

The C library gets each block of more than 32 MiB from the system, and returns the block when it is freed. orjson needs
such blocks for a text of 3 MB or more, and the system's work for their pages takes much longer than the parsing. So the
gateway keeps freed memory for the next message, and returns it every few seconds. A few large outputs leave a hundred
megabytes, which the gateway must not keep for ever.
"""

from __future__ import annotations

import ctypes

_library = ctypes.CDLL(None)
#: functions of glibc; other C libraries have rules of their own
_trim = getattr(_library, "malloc_trim", None)
_option = getattr(_library, "mallopt", None)
#: options of `mallopt`. Source: malloc.h of glibc
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
#: free bytes that the library may keep at the end of the heap. Most of them take no memory: orjson asks for twelve
#: times the size of a text, and uses only a part of that.
KEPT = 1024**3


def keep_freed_memory() -> None:
    """Keep the main thread's freed memory, also of large blocks, until `trim_heap` returns it to the system."""
    if _option is not None:
        _option(_TRIM_THRESHOLD, KEPT)
        _option(_MMAP_MAX, 0)


def trim_heap() -> None:
    """Return freed memory to the system. This takes some milliseconds, and other threads continue meanwhile."""
    if _trim is not None:
        _trim(0)
