"""Space on the disk of the databases: whether there is any, and a reserve for deletions, which need some, too."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: bytes on the disk that only deletions may use, and bytes of a block
RESERVE = 1024**2
BLOCK = 4096


def room_in(directory: Path) -> int:
    """Return the bytes that this process can still write to the disk of a directory.

    Raises:
        OSError: when the disk does not answer.
    """
    disk = os.statvfs(directory)
    return disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)


class Reserve:
    """A file that keeps space on the disk for deletions. All databases of a directory share it."""

    def __init__(self, directory: Path) -> None:
        """Use the reserve of a directory; `fill` makes it."""
        self._path = directory / "reserve"

    def fill(self) -> None:
        """Take the space that is missing, or what there is of it.

        Raises:
            OSError: when the disk has less.
        """
        with self._locked() as file:
            _fill(file)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give the space to whatever the body writes, and take back what is left.

        Raises:
            OSError: when the space cannot be given.
        """
        with self._locked() as file:
            os.ftruncate(file, 0)
            try:
                yield
            finally:
                with suppress(OSError):  # it is short until the thread fills it
                    _fill(file)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for one user: no other thread and no command fills it while it is lent."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _fill(file: int) -> None:
    for offset in range(os.fstat(file).st_size, RESERVE, BLOCK):
        os.posix_fallocate(file, offset, BLOCK)
