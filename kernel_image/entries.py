"""Describes entries of open directories as the gateway gets them; no link is followed."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from typing import Any

from kernel_image.spelling import spelt
from kernel_image.walk import Place, open_below


def describe(directory: int, name: str, path: str) -> dict[str, Any]:
    """Describe an entry; a link is not followed.

    Args:
        directory: descriptor of its directory.
        name: its name there.
        path: path of the entry in the answer.
    """
    return _described(os.stat(name, dir_fd=directory, follow_symlinks=False), path)


def _described(info: os.stat_result, path: str) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": spelt(os.path.basename(path)),
        "path": spelt(path),
        "type": kinds.get(stat.S_IFMT(info.st_mode), "special"),
        "size": info.st_size,
        "modified": info.st_mtime,
        "mode": stat.S_IMODE(info.st_mode),
        "permissions": stat.filemode(info.st_mode),
        "owner": _name(pwd.getpwuid, info.st_uid),
        "group": _name(grp.getgrgid, info.st_gid),
    }


def _name(find: Any, number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def below(place: Place, path: str, depth: int) -> Iterator[dict[str, Any]]:
    """Yield a directory's entries as `each_below` does, described."""
    for way, info in each_below(place, depth):
        yield _described(info, os.path.join(path, *way))


def each_below(place: Place, depth: float) -> Iterator[tuple[list[str], os.stat_result]]:
    """Yield a directory's entries by name, then those of its subdirectories; no link is followed.

    Args:
        place: the directory.
        depth: levels to go down; 1: the directory's own entries alone.

    Yields:
        the names on the way to an entry, its own last, and its status.

    Raises:
        OSError: when the place is no directory, or cannot be read.
    """
    waiting = [[place.name]]  # names on the way to each directory
    for way in waiting:
        try:
            directory = open_below(place.directory, way)
        except OSError:
            if way == [place.name]:
                raise
            continue  # removed or made unreadable since it was listed
        try:
            for name in sorted(os.listdir(directory)):
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode) and len(way) < depth:
                        waiting.append([*way, name])
                    yield [*way[1:], name], info
        finally:
            os.close(directory)
