"""Makes, removes, renames and copies entries of open directories. Links are never followed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator

from kernel_image.walk import Place, Refused, open_below, open_directory

PIECE = 256 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: with NONBLOCK, opening a pipe does not wait for its other end
_REGULAR = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


#: names of temporary entries, which are renamed when they are complete
UNFINISHED = re.compile(r"\.(upload|move)-[0-9a-f]{16}")


def unused_name(purpose: str) -> str:
    """Return a random name for a temporary entry. `purpose` is a part of the name."""
    return f".{purpose}-{os.urandom(8).hex()}"


def create(directory: int, name: str) -> int:
    """Make a file that only its owner can use, and return a descriptor for writing."""
    return os.open(name, _NEW, 0o600, dir_fd=directory)


def open_regular(directory: int, name: str) -> int:
    """Open a regular file, and return a descriptor for reading.

    Raises:
        Refused: when the entry is not a regular file.
    """
    descriptor = os.open(name, _REGULAR, dir_fd=directory)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    raise Refused("directory" if stat.S_ISDIR(kind) else "special")


def remove(directory: int, name: str) -> None:
    """Remove an entry, and everything in it if it is a directory. A link itself is removed, not its target."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=directory)
    else:
        os.unlink(name, dir_fd=directory)


def drop_compiled(directory: int, name: str) -> None:
    """Remove the compiled files of a Python module that was replaced.

    Python uses a compiled file if the size and the time of the source are unchanged. The time has whole seconds, so a
    new source with the same size may have the same time. Source: PEP 552.
    """
    module, suffix = os.path.splitext(name)
    if suffix != ".py":
        return
    with contextlib.suppress(OSError), _opened(directory, "__pycache__") as cache:
        for compiled in os.listdir(cache):
            if compiled.startswith(f"{module}.") and compiled.endswith(".pyc"):
                os.unlink(compiled, dir_fd=cache)


def rename(source: Place, target: Place, *, replace: bool) -> None:
    """Move an entry to another place, which may be on another file system.

    Args:
        source: place of the entry.
        target: new place of the entry.
        replace: False if an entry at the new place is an error, even if it was made during this call.

    Raises:
        FileExistsError: when there is an entry at the new place, and `replace` is False.
        OSError: when the entry cannot be moved.
        Refused: see `carry`.
    """
    try:
        _rename(source.directory, source.name, target, replace=replace)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        carry(source, target, replace=replace)


def _rename(directory: int, name: str, target: Place, *, replace: bool) -> None:
    ends = {"src_dir_fd": directory, "dst_dir_fd": target.directory}
    if replace:
        os.rename(name, target.name, **ends)
        return
    # renameat2 can rename without replacing, but gVisor does not support that in a workspace. So an empty entry is made
    # at the target first, and the rename replaces it. For files a hard link would do, but gVisor of 2026 refuses a
    # second one.
    is_directory = stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    if is_directory:
        os.mkdir(target.name, dir_fd=target.directory)
    else:
        os.close(create(target.directory, target.name))
    try:
        os.rename(name, target.name, **ends)  # replaces a directory only if it is empty
    except OSError:
        (os.rmdir if is_directory else os.unlink)(target.name, dir_fd=target.directory)
        raise


def carry(source: Place, target: Place, *, replace: bool = True) -> None:
    """Move an entry to another file system, by copying it and removing the source.

    The copy is made beside the target, and is renamed when it is complete. An error before that changes neither source
    nor target.

    Args:
        source: place of the entry.
        target: new place of the entry.
        replace: see `rename`.

    Raises:
        Refused: `special` when the entry is or contains something that cannot be copied; `left` when the copy is
            complete but the source, or a part of it, cannot be removed.
    """
    name = unused_name("move")
    directories: list[tuple[list[str], os.stat_result]] = []
    try:
        _copy(source.directory, source.name, target.directory, [name], directories)
        for way, info in reversed(directories):
            directory = open_below(target.directory, way)
            _finish(directory, info)
            os.close(directory)
        _rename(target.directory, name, target, replace=replace)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            remove(target.directory, name)
        raise
    try:
        remove(source.directory, source.name)
    except OSError:
        raise Refused("left") from None


def _copy(
    directory: int, name: str, into: int, way: list[str], directories: list[tuple[list[str], os.stat_result]]
) -> None:
    """Copy an entry. The caller sets the modes of copied directories later, because a mode may forbid new entries.

    Args:
        directory: descriptor of the entry's directory.
        name: name of the entry.
        into: descriptor of the copy's directory.
        way: names of the path to the copy; the last one is that of the copy.
        directories: this call appends the path and the status of each copied directory.
    """
    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=directory), way[-1], dir_fd=into)
    elif stat.S_ISDIR(info.st_mode):
        directories.append((way, info))
        os.mkdir(way[-1], 0o700, dir_fd=into)
        with _opened(directory, name) as inside, _opened(into, way[-1]) as copy:
            for child in os.listdir(inside):
                _copy(inside, child, copy, [*way, child], directories)
    else:
        with os.fdopen(open_regular(directory, name), "rb") as file, os.fdopen(create(into, way[-1]), "wb") as copied:
            shutil.copyfileobj(file, copied, PIECE)
            copied.flush()
            _finish(copied.fileno(), info)


@contextlib.contextmanager
def _opened(directory: int, name: str) -> Iterator[int]:
    descriptor = open_directory(directory, name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _finish(descriptor: int, info: os.stat_result) -> None:
    os.fchmod(descriptor, stat.S_IMODE(info.st_mode))
    os.utime(descriptor, ns=(info.st_atime_ns, info.st_mtime_ns))
