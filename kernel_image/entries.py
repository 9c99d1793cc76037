"""Describes entries of open directories as the gateway gets them; no link is followed."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from typing import Any

from kernel_image.walk import Place, open_below


def describe(directory: int, name: str, path: str) -> dict[str, Any]:
    """Describe an entry; a link is not followed.

    Args:
        directory: descriptor of its directory.
        name: its name there.
        path: path of the entry in the answer.
    """
    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": _text(os.path.basename(path)),
        "path": _text(path),
        "type": kinds.get(stat.S_IFMT(info.st_mode), "special"),
        "size": info.st_size,
        "modified": info.st_mtime,
        "mode": stat.S_IMODE(info.st_mode),
        "permissions": stat.filemode(info.st_mode),
        "owner": _name(pwd.getpwuid, info.st_uid),
        "group": _name(grp.getgrgid, info.st_gid),
    }


def _text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")


def _name(find: Any, number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def below(place: Place, path: str, depth: int) -> Iterator[dict[str, Any]]:
    """Yield a directory's entries by name, then those of its subdirectories, down to `depth`; no link is followed."""
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
                    entry = describe(directory, name, os.path.join(path, *way[1:], name))
                    if entry["type"] == "directory" and len(way) < depth:
                        waiting.append([*way, name])
                    yield entry
        finally:
            os.close(directory)
