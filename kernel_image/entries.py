"""Describes entries of open directories for the gateway. Links are never followed."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from typing import Any

from kernel_image.file_names import text_of
from kernel_image.walk import Place, open_below


def describe(directory: int, name: str, path: str) -> dict[str, Any]:
    """Return the description of an entry. A link itself is described, not its target.

    Args:
        directory: descriptor of the entry's directory.
        name: name of the entry in that directory.
        path: path of the entry for the description.
    """
    return _described(os.stat(name, dir_fd=directory, follow_symlinks=False), path)


def _described(info: os.stat_result, path: str) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": text_of(os.path.basename(path)),
        "path": text_of(path),
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
    """Yield the descriptions of the entries that `each_below` yields. `path` is the path of the directory."""
    for way, info in each_below(place, depth):
        yield _described(info, os.path.join(path, *way))


def each_below(place: Place, depth: float) -> Iterator[tuple[list[str], os.stat_result]]:
    """Yield a directory's entries in the order of their names, then those of its subdirectories.

    Args:
        place: the directory.
        depth: number of levels. 1 means only the directory's own entries.

    Yields:
        the names of the path from the directory to an entry, and the entry's status.

    Raises:
        OSError: when the place is not a directory, or cannot be read.
    """
    waiting = [[place.name]]  # names of the path to each directory
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
