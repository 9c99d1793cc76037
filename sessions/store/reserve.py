"""The space on the disk of the databases, and a reserve of it for deletions, which need some space, too."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: bytes on the disk that only deletions may use, and bytes of each block of them
RESERVE = 1024**2
BLOCK = 4096


def room_in(directory: Path) -> int:
    """Return the bytes that this process can still write to the disk of a directory.

    Raises:
        OSError: when the disk does not answer.
    """
    disk = os.statvfs(directory)
    return disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)


def size_of_disk(directory: Path) -> int:
    """Return the bytes of the whole disk of a directory.

    Raises:
        OSError: when the disk does not answer.
    """
    disk = os.statvfs(directory)
    return disk.f_frsize * disk.f_blocks


class Reserve:
    """A file that keeps space on the disk for deletions. All databases of a directory share it."""

    def __init__(self, directory: Path) -> None:
        """Keep the path of a directory's reserve. `fill` makes the file."""
        self._path = directory / "reserve"

    def fill(self) -> None:
        """Make the file as large as the reserve. If the disk has less space, take all of it.

        Raises:
            OSError: when the disk has less space.
        """
        with self._locked() as file:
            _fill(file)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free the reserve for writes inside the `with` block, and take back what is left of it.

        Raises:
            OSError: when the reserve cannot be freed.
        """
        with self._locked() as file:
            os.ftruncate(file, 0)
            try:
                yield
            finally:
                with suppress(OSError):  # the reserve stays too small until the thread of `sync.py` fills it
                    _fill(file)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open and lock the file, so that no other thread and no command fills it meanwhile."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _fill(file: int) -> None:
    for offset in range(os.fstat(file).st_size, RESERVE, BLOCK):
        os.posix_fallocate(file, offset, BLOCK)
