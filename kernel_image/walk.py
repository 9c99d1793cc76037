"""Finds entries in the workspace or `/tmp`, safely against links that user code makes meanwhile.

User code may replace a directory by a link at any moment. So each step opens one name in the directory that the step
before has opened, and never follows a link: the link is read as text, and its target is walked in the same way. `..`
returns to the directory of the step before. The result is an open directory and a name in it, so a later change of the
path cannot lead elsewhere. Linux's `openat2` does the same, but gVisor does not support it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple, Self

from kernel_image.protocol import TEMPORARY

#: maximum links that a walk follows; a further link counts as the entry itself. Source: path_resolution(7)
LINKS_MAX = 40
#: flags for a descriptor that only serves to inspect an entry, and to open entries in it
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = _STEP | os.O_DIRECTORY
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The operation was refused. The first argument is the code of the error, which the gateway knows."""


#: code of the error for the gateway, by the number of the failed system call's error
_WORDS = {
    errno.EEXIST: "exists",
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.ELOOP: "link",
    errno.ENXIO: "special",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.EISDIR: "directory",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENAMETOOLONG: "name",
}


def refusal(error: Refused | OSError) -> dict[str, str | None]:
    """Return the answer for an operation that was refused or has failed."""
    if isinstance(error, Refused):
        return {"error": error.args[0]}
    number = error.errno or 0
    return {"error": _WORDS.get(number, "failed"), "errno": errno.errorcode.get(number)}


class Place:
    """A name in an open directory, which `with` closes. The entry and directories of its path may be missing."""

    def __init__(self, found: int, missing: list[str], name: str, info: os.stat_result | None) -> None:
        """Describe a place.

        Args:
            found: descriptor of the last existing directory of the path.
            missing: names of the missing directories between that directory and the entry.
            name: name of the entry. `.` means the workspace or `/tmp` itself.
            info: status of the entry. None means that there is no such entry.
        """
        self.name = name
        self.info = info
        self._found = found
        self._missing = missing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._found)

    @property
    def is_directory(self) -> bool:
        """True if the entry is a directory."""
        return self.info is not None and stat.S_ISDIR(self.info.st_mode)

    @property
    def directory(self) -> int:
        """The descriptor of the entry's directory.

        Raises:
            FileNotFoundError: when the directory is missing.
        """
        if self._missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._found

    def make_directory(self) -> None:
        """Make the missing directories of the entry's path.

        Raises:
            FileExistsError: when something that is not a directory has one of the names.
        """
        if not stat.S_ISDIR(os.fstat(self._found).st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        while self._missing:
            with contextlib.suppress(FileExistsError):  # made meanwhile
                os.mkdir(self._missing[0], dir_fd=self._found)
            made = descend(self._found, [self._missing.pop(0)])
            os.close(self._found)
            self._found = made


class _Step(NamedTuple):
    name: str
    #: descriptor of the entry; None if there is no such entry
    entry: int | None
    info: os.stat_result | None

    def leave(self) -> None:
        if self.entry is not None:
            os.close(self.entry)


def find(path: str, *, follow: bool = True) -> Place:
    """Find the place of an entry. A relative path must end in the workspace, an absolute path in `/tmp`.

    Args:
        path: path of the entry.
        follow: True to follow a link at the path's end.

    Raises:
        OSError: when the user has no permission for a directory of the path.
        Refused: when the path leads elsewhere.
    """
    root, start = (TEMPORARY, TEMPORARY) if path.startswith("/") else (".", os.getcwd())
    steps: list[_Step] = []
    kept: int | None = None
    try:
        _walk(os.path.join(start, path), steps, follow=follow)
        boundary = os.stat(root)
        at = [number for number, step in enumerate(steps) if step.info and os.path.samestat(step.info, boundary)]
        if not at:
            raise Refused("outside")
        *before, last = steps[at[-1] :]
        if not before:
            before, last = [last], last._replace(name=".")
        kept = next(step.entry for step in reversed(before) if step.entry is not None)
    finally:
        for step in steps:
            if step.entry != kept:
                step.leave()
    return Place(kept, [step.name for step in before if step.entry is None], last.name, last.info)


def _walk(path: str, steps: list[_Step], *, follow: bool) -> None:
    """Walk a path from `/`, and append the steps that lead to its end to `steps`."""
    top = os.open("/", _DIRECTORY)
    steps.append(_Step("/", top, os.fstat(top)))
    waiting, links = _names(path), 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            if steps[1:]:
                steps.pop().leave()
            continue
        step = _step(steps[-1].entry, name)
        steps.append(step)
        is_link = step.info is not None and stat.S_ISLNK(step.info.st_mode)
        if is_link and links < LINKS_MAX and (waiting or follow):
            links += 1
            target = os.readlink("", dir_fd=step.entry)
            steps.pop().leave()
            while target.startswith("/") and steps[1:]:
                steps.pop().leave()
            waiting += _names(target)


def _names(path: str) -> list[str]:
    """Return the names of a path in reverse order."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _step(directory: int | None, name: str) -> _Step:
    if directory is not None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entry = os.open(name, _STEP, dir_fd=directory)
            return _Step(name, entry, os.fstat(entry))
    return _Step(name, None, None)


def descend(directory: int, names: Iterable[str]) -> int:
    """Return a descriptor of a directory below another directory. Links are not followed.

    Args:
        directory: descriptor of the upper directory.
        names: names of the directories below it, in order.

    Raises:
        OSError: when one of the names is not that of a directory.
    """
    below = os.dup(directory)
    for name in names:
        above = below
        try:
            below = os.open(name, _DIRECTORY, dir_fd=above)
        finally:
            os.close(above)
    return below


def open_directory(directory: int, name: str) -> int:
    """Open a directory in another directory for reading. A link is not followed.

    Raises:
        OSError: when the entry is not a directory, or may not be read.
    """
    return os.open(name, _LISTED, dir_fd=directory)


def open_below(directory: int, names: list[str]) -> int:
    """Open a directory below another directory for reading; see `descend` and `open_directory`."""
    above = descend(directory, names[:-1])
    try:
        return open_directory(above, names[-1])
    finally:
        os.close(above)
