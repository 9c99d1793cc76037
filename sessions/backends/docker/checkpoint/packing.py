"""Packs a workspace's disk: writes only the parts of its image file that contain data, one after the other.

Each part begins with its offset in the image file and its length. The last part is empty, and its offset is the size of
the image file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from sessions.backends.docker.checkpoint.images import need_room

_PART = struct.Struct("<QQ")
#: bytes that are read at a time; a piece of zeros is left out
_PIECE = 256 * 1024
_ZEROS = bytes(_PIECE)
_libc = ctypes.CDLL(None, use_errno=True)


def flush(mounted: Path) -> None:
    """Write all cached data of a mounted file system to its device. Blocks.

    Raises:
        OSError: when the data could not be written.
    """
    descriptor = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs")
    finally:
        os.close(descriptor)


def pack(image: Path, packed: Path) -> None:
    """Pack a disk. Nothing may write to it meanwhile. Blocks.

    Args:
        image: image file of the disk.
        packed: path of the packed file, which is made.

    Raises:
        OSError: when a file cannot be read or written.
    """
    with image.open("rb", buffering=0) as source, packed.open("xb") as target:
        for begin, end in _data(source.fileno()):
            for offset in range(begin, end, _PIECE):
                piece = os.pread(source.fileno(), min(_PIECE, end - offset), offset)
                if piece != _ZEROS[: len(piece)]:
                    target.write(_PART.pack(offset, len(piece)) + piece)
        target.write(_PART.pack(os.fstat(source.fileno()).st_size, 0))


def _data(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each part of a file that contains data."""
    size, end = os.fstat(descriptor).st_size, 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def unpack(packed: Path, image: Path) -> None:
    """Make the image file of a disk from a packed file. Blocks.

    Args:
        packed: the packed file.
        image: path of the image file, which is made. It has its final name from the beginning, because the disks'
            helper may count the files of its directory at any time.

    Raises:
        TooLarge: when there is no room for the image file.
        OSError: when a file cannot be read or written.
    """
    need_room(image.parent, packed.stat().st_size)
    with packed.open("rb") as source, image.open("xb", buffering=0) as target:
        os.fchmod(target.fileno(), 0o600)
        while True:
            offset, length = _PART.unpack(source.read(_PART.size))
            if not length:
                target.truncate(offset)
                return
            os.pwrite(target.fileno(), source.read(length), offset)
