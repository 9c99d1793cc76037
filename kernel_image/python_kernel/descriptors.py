"""What arrives at the kernel's descriptors 1 and 2: the output of child processes, of C code and of `os.write`.

Each of them is the writing end of a pipe. In ipykernel a thread reads it, sooner or later, and decodes each piece by
itself. Here whoever uses the stream of this name reads it first (`Stream` in `publishing.py`), so what was written
before Python's own text stands before it, and what was written before a cell's end is in the cell. A thread reads
beside them, so that output arrives while a cell waits for its child, and no child waits for the cell.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: gives Python's lock away: C waits while a pipe is full, and the thread that reads it needs the lock
_c = ctypes.CDLL(None)
_c.setvbuf.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t)
_c.fflush.argtypes = (ctypes.c_void_p,)
_LINES = 1  # _IOLBF
#: C's own streams for the descriptors, by name
_C_STREAMS = {name: ctypes.c_void_p.in_dll(_c, name) for name in ("stdout", "stderr")}
#: keeps Python's lock: else each look would give the processor to a thread that computes, for some milliseconds
_ioctl = ctypes.PyDLL(None).ioctl


#: seconds between two prints in which nobody can have written to a descriptor, at most
QUICK = 2e-6


class Descriptor:
    """Descriptor 1 or 2, and the end of the pipe at which its output is read."""

    def __init__(self, number: int) -> None:
        """Put a pipe in place of a descriptor.

        Args:
            number: number of the descriptor.
        """
        self.number = number
        #: seconds in which nobody can have written: no system call is faster. Prints that follow one another as quickly
        #: need no look between them, which takes up to 35 microseconds in gVisor. Each look measures what a call takes,
        #: because a kernel that starts on a busy machine would find 40 microseconds for what takes 2 soon after.
        self.quick = QUICK
        self._end, written = os.pipe()
        os.set_blocking(self._end, False)
        os.dup2(written, number)
        os.close(written)
        self._bytes = ctypes.c_int()
        # Made once: a look takes half as long.
        self._question = (
            ctypes.c_int(self._end),
            ctypes.c_ulong(termios.FIONREAD),
            ctypes.c_void_p(ctypes.addressof(self._bytes)),
        )
        self._poll = select.poll()
        self._poll.register(self._end, select.POLLIN)

    def wait(self) -> bool:
        """Wait for output.

        Returns:
            False if there will be none, because no process has the descriptor open.
        """
        return any(event & select.POLLIN for _, event in self._poll.poll())

    def look(self) -> int:
        """Return how many bytes can be read now; one thread at a time."""
        begun = time.monotonic()
        failed = _ioctl(*self._question)
        self.quick = min(self.quick, time.monotonic() - begun)
        return 0 if failed else self._bytes.value

    def read(self, size: int) -> Iterator[bytes]:
        """Return an iterator that reads once, in C, where no signal handler runs: nothing that was read gets lost.

        Raises:
            BlockingIOError: from the iterator, when there is nothing any more.
        """
        return map(os.read, (self._end,), (size,))

    def write(self, text: str) -> None:
        """Write as a child process does."""
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self.number, data) :]


def print_by_lines(name: str) -> None:
    """Let C code and Python's usual stream write each line at once, as at a terminal, and not when a buffer is full.

    Args:
        name: `stdout` or `stderr`; nothing was printed there before.
    """
    usual: Any = getattr(sys, f"__{name}__")
    usual.flush()
    usual.reconfigure(line_buffering=True)
    _c.setvbuf(_C_STREAMS[name], None, _LINES, 0)


def flush() -> None:
    """Write the parts of lines that C code and Python's usual streams have kept."""
    for usual in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # a cell may have removed or closed them
            usual.flush()  # type: ignore[union-attr]
    for stream in _C_STREAMS.values():
        _c.fflush(stream)


class Cells:
    """The cells that run: output of a descriptor belongs to one of them, but does not say to which."""

    def __init__(self) -> None:
        """Begin without a cell."""
        self._running: list[dict[str, Any]] = []
        self._newest: dict[str, Any] = {}

    @contextmanager
    def running(self, header: dict[str, Any]) -> Iterator[None]:
        """Count a cell among those that run.

        Args:
            header: header of the cell's request.
        """
        self._running.append(header)
        self._newest = header
        try:
            yield
        finally:
            self._running.remove(header)
            self._newest = self._running[-1] if self._running else header

    def owner(self, header: dict[str, Any]) -> dict[str, Any]:
        """Return the header of the cell that owns the output found now.

        That is the finder's own cell while it runs, else the newest that runs, or the last one that has ended: a thread
        of an earlier cell must not take the output of this one.

        Args:
            header: header of the finder's own cell.
        """
        return header if header in self._running else self._newest
