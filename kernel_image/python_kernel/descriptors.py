"""Reads the output at the kernel's descriptors 1 and 2, which comes from child processes, C code and `os.write`.

Each of the two descriptors is the writing end of a pipe. In ipykernel a thread reads the pipe at some time, and decodes
each piece separately. Here each use of `sys.stdout` or `sys.stderr` reads the pipe first (`Stream` in `publishing.py`).
So output of the descriptor that comes before a `print` is shown before it, and output that comes before the end of a
cell belongs to the cell. In addition, a thread reads the pipe, so that output is shown while a cell waits for its child
process, and a child process never waits for the cell.
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

#: calls through CDLL release Python's lock: C may wait for a full pipe, and the pipe's reading thread needs the lock
_c = ctypes.CDLL(None)
_c.setvbuf.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t)
_c.fflush.argtypes = (ctypes.c_void_p,)
_LINES = 1  # _IOLBF
#: C's streams for the descriptors, by name
_C_STREAMS = {name: ctypes.c_void_p.in_dll(_c, name) for name in ("stdout", "stderr")}
#: calls through PyDLL keep Python's lock: otherwise each call could give the processor to a computing thread for
#: milliseconds
_ioctl = ctypes.PyDLL(None).ioctl


#: initial value of `Descriptor.quick`, in seconds
QUICK = 2e-6


class Descriptor:
    """Descriptor 1 or 2, and the reading end of its pipe."""

    def __init__(self, number: int) -> None:
        """Replace a descriptor by the writing end of a new pipe.

        Args:
            number: number of the descriptor.
        """
        self.number = number
        #: shortest time of a system call so far, in seconds. If less time has passed since the last look, nobody can
        #: have written meanwhile. Then no look is needed, which takes up to 35 microseconds in gVisor. Each look
        #: measures the time again: on a busy machine a start measures 40 microseconds for a call that takes 2 later.
        self.quick = QUICK
        self._end, written = os.pipe()
        os.set_blocking(self._end, False)
        os.dup2(written, number)
        os.close(written)
        self._bytes = ctypes.c_int()
        # The arguments are made only once, so that a look takes half as long.
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
            False if there will be no more output, because no process has the descriptor open.
        """
        return any(event & select.POLLIN for _, event in self._poll.poll())

    def look(self) -> int:
        """Return the number of bytes that can be read now. Only one thread may call this at a time."""
        begun = time.monotonic()
        failed = _ioctl(*self._question)
        self.quick = min(self.quick, time.monotonic() - begun)
        return 0 if failed else self._bytes.value

    def read(self, size: int) -> Iterator[bytes]:
        """Return an iterator that reads once. It reads in C, where no signal handler runs, so no data can be lost.

        Raises:
            BlockingIOError: from the iterator, when nothing can be read any more.
        """
        return map(os.read, (self._end,), (size,))

    def write(self, text: str) -> None:
        """Write text to the descriptor, like a child process."""
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self.number, data) :]


def print_by_lines(name: str) -> None:
    """Let C code and Python's original stream write each line immediately, as at a terminal, not when a buffer is full.

    Args:
        name: `stdout` or `stderr`. Nothing may have been printed there before.
    """
    usual: Any = getattr(sys, f"__{name}__")
    usual.flush()
    usual.reconfigure(line_buffering=True)
    _c.setvbuf(_C_STREAMS[name], None, _LINES, 0)


def flush() -> None:
    """Write the incomplete lines in the buffers of C code and of Python's original streams."""
    for usual in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # a cell may have removed or closed them
            usual.flush()  # type: ignore[union-attr]
    for stream in _C_STREAMS.values():
        _c.fflush(stream)


class Cells:
    """The running cells. Output at a descriptor belongs to one of them, but does not show to which one."""

    def __init__(self) -> None:
        """Start without cells."""
        self._running: list[dict[str, Any]] = []
        self._newest: dict[str, Any] = {}

    @contextmanager
    def running(self, header: dict[str, Any]) -> Iterator[None]:
        """Record a cell as running during the context.

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
        """Return the header of the cell to which output at a descriptor belongs.

        It is the caller's cell if that cell runs. Otherwise it is the newest running cell, or without one the cell that
        ended last: a thread of an ended cell must not take the output of the running cell.

        Args:
            header: header of the caller's cell.
        """
        return header if header in self._running else self._newest
