"""Finds entries in the workspace or `/tmp` by descriptors, step by step.

User code may swap a directory for a link at any moment. So each step opens one name in the directory that the step
before has opened, and never follows a link: a link is read as text, and its target is walked in the same way. `..` goes
back to the directory that the walk came from. A walk ends with an open directory and a name in it, so a later change to
the path leads nowhere else. Linux's `openat2` does the same, but gVisor does not have it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple, Self

from kernel_image.protocol import TEMPORARY

#: links that a walk follows; a further one is taken for the entry itself. Source: path_resolution(7)
LINKS_MAX = 40
#: flags for a descriptor that only shows what an entry is, and finds others in it
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = _STEP | os.O_DIRECTORY
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The operation was refused; the first argument is an error word that the gateway knows."""


#: what the gateway is told for a failed system call
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
    """Return the answer of an operation that was refused or has failed."""
    if isinstance(error, Refused):
        return {"error": error.args[0]}
    number = error.errno or 0
    return {"error": _WORDS.get(number, "failed"), "errno": errno.errorcode.get(number)}


class Place:
    """A name in an open directory. The entry and the directories before it may be absent. Closed by `with`."""

    def __init__(self, found: int, missing: list[str], name: str, info: os.stat_result | None) -> None:
        """Describe a place.

        Args:
            found: descriptor of the last directory on the way that exists.
            missing: names of the directories between it and the entry, which do not exist.
            name: of the entry; `.`: the workspace or `/tmp` itself.
            info: status of the entry; None: there is none.
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
        """Whether the entry is a directory."""
        return self.info is not None and stat.S_ISDIR(self.info.st_mode)

    @property
    def directory(self) -> int:
        """The descriptor of the entry's directory.

        Raises:
            FileNotFoundError: when there is none.
        """
        if self._missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._found

    def make_directory(self) -> None:
        """Make the entry's directory if it does not exist.

        Raises:
            FileExistsError: when something else is in the way.
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
    #: descriptor of the entry; None: there is none
    entry: int | None
    info: os.stat_result | None

    def leave(self) -> None:
        if self.entry is not None:
            os.close(self.entry)


def find(path: str, *, follow: bool = True) -> Place:
    """Walk to an entry. A relative path must end in the workspace, an absolute one in `/tmp`.

    Args:
        path: path of the entry.
        follow: True: follow a link at the path's end.

    Raises:
        OSError: when the user may not go there.
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
    """Walk a path from `/`, and put the steps that lead to its end into `steps`."""
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
    """Return a path's names, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _step(directory: int | None, name: str) -> _Step:
    if directory is not None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entry = os.open(name, _STEP, dir_fd=directory)
            return _Step(name, entry, os.fstat(entry))
    return _Step(name, None, None)


def descend(directory: int, names: Iterable[str]) -> int:
    """Return a descriptor of a directory below another one; no link is followed.

    Args:
        directory: descriptor of the other directory.
        names: names of the directories below it, in order.

    Raises:
        OSError: when one of them is no directory.
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
    """Open a directory in another one for reading; a link is not followed.

    Raises:
        OSError: when it is no directory, or may not be read.
    """
    return os.open(name, _LISTED, dir_fd=directory)


def open_below(directory: int, names: list[str]) -> int:
    """Open a directory below another one for reading, as `descend` and `open_directory` do."""
    above = descend(directory, names[:-1])
    try:
        return open_directory(above, names[-1])
    finally:
        os.close(above)
