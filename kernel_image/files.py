"""File operations beside user code, as its user, in its workspace (the current directory).

The only argument is JSON: `{"op": …, "path": …}` and further keys of the operation. The answer is one line of JSON,
for `read` followed by the content. A relative path must stay in the workspace, an absolute one in `/tmp`. Standard
library only. Links, pipes, devices and directories that user code makes or changes meanwhile cause at most an error.
"""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import shutil
import signal
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

PIECE = 256 * 1024
#: entries of a listing; further entries are left out
LIST_MAX = 10_000
#: bytes of a listing; the gateway accepts slightly more
LIST_BYTES = 6 * 1024**2
#: the second directory for files, besides the workspace
TEMPORARY = "/tmp"  # noqa: S108
#: length prefix of a piece of content whose size is not known beforehand; an empty piece ends the content
FRAME = struct.Struct(">I")
#: seconds without progress after which the reader counts as gone
READER_GONE = 600


class Refused(Exception):
    """The operation was refused; the first argument is an error word that the gateway knows."""


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the operation that `argument` describes."""
    request = json.loads(argument)
    try:
        _OPERATIONS[request["op"]](request, stdin, stdout)
    except Refused as refused:
        _say(stdout, {"error": refused.args[0]})
    except OSError as error:
        _say(stdout, {"error": _WORDS.get(error.errno or 0, "failed"), "errno": errno.errorcode.get(error.errno or 0)})
    except RecursionError:  # directories nested deeper than `shutil` can follow
        _say(stdout, {"error": "failed", "errno": "ELOOP"})


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


def _say(stdout: BinaryIO, value: dict[str, Any]) -> None:
    stdout.write(json.dumps(value).encode() + b"\n")
    stdout.flush()


def _inside(path: str) -> str:
    """Return the real path of `path`, which must lie in the workspace or `/tmp` after all links are followed."""
    root = os.path.realpath(TEMPORARY if path.startswith("/") else ".")
    real = os.path.realpath(os.path.join(root, path))
    if real != root and not real.startswith(root + os.sep):
        raise Refused("outside")
    return real


def _entry_path(path: str) -> str:
    """Return the real path of the entry `path` itself; a link at its end is not followed."""
    path = os.path.normpath(path)
    name = os.path.basename(path)
    if name in {"", ".", ".."} or path == TEMPORARY:
        raise Refused("outside")
    directory = os.path.dirname(path)
    return os.path.join(_inside(directory), name)


def _entry(place: str, path: str) -> dict[str, Any]:
    """Describe an entry; a link is not followed.

    Args:
        place: real path of the entry.
        path: path of the entry in the answer.
    """
    info = os.lstat(place)
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


def _list(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    entries, size = [], 0
    for entry in _entries(_inside(request["path"]), request["path"].rstrip("/"), request.get("depth", 1)):
        size += len(json.dumps(entry)) + 2
        if size > LIST_BYTES:
            break
        entries.append(entry)
    _say(stdout, {"entries": entries})


def _entries(directory: str, path: str, depth: int) -> Iterator[dict[str, Any]]:
    """Yield a directory's entries by name, then those of its subdirectories, down to `depth`; no link is followed."""
    waiting = [(directory, path, depth)]
    left = LIST_MAX
    for place, called, levels in waiting:
        if not left:
            return
        try:
            names = sorted(os.listdir(place))[:left]
        except OSError:
            if place == directory:
                raise
            continue  # removed or made unreadable since it was listed
        for name in names:
            try:
                entry = _entry(os.path.join(place, name), os.path.join(called, name))
            except FileNotFoundError:
                continue  # removed since it was listed
            left -= 1
            yield entry
            if entry["type"] == "directory" and levels > 1:
                waiting.append((os.path.join(place, name), os.path.join(called, name), levels - 1))


def _stat(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    _say(stdout, {"entry": _entry(_inside(request["path"]), request["path"].rstrip("/"))})


def _open_regular(path: str) -> BinaryIO:
    # Not blocking: opening a pipe without a writer would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise Refused("directory" if stat.S_ISDIR(kind) else "special")


def _read(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    with _open_regular(_inside(request["path"])) as file:
        size = os.fstat(file.fileno()).st_size
        _say(stdout, {"size": size})
        while size > 0 and (piece := file.read(min(PIECE, size))):
            signal.alarm(READER_GONE)  # a blocked writer keeps its container from ending
            stdout.write(piece)
            size -= len(piece)
    stdout.flush()


def _write(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> None:
    target = _inside(request["path"])
    if os.path.isdir(target):
        raise Refused("directory")
    folder = os.path.dirname(target)
    if request.get("parents", True):
        os.makedirs(folder, exist_ok=True)
    # Written beside the target and renamed: a reader sees the old file or the new one, never half of it.
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".upload-", delete=False) as file:
        try:
            size = 0
            for piece in _pieces(request.get("size"), stdin):
                file.write(piece)
                size += len(piece)
            file.flush()
            if "mode" in request:
                os.fchmod(file.fileno(), request["mode"])
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
    _say(stdout, {"size": size})


def _pieces(size: int | None, stdin: BinaryIO) -> Iterator[bytes]:
    """Yield the content: `size` bytes, or pieces with a length prefix."""
    if size is None:
        while length := FRAME.unpack(_exactly(FRAME.size, stdin))[0]:
            yield _exactly(length, stdin)
        return
    while size > 0:
        yield (piece := _some(min(PIECE, size), stdin))
        size -= len(piece)


def _some(most: int, stdin: BinaryIO) -> bytes:
    if piece := stdin.read(most):
        return piece
    raise Refused("incomplete")


def _exactly(size: int, stdin: BinaryIO) -> bytes:
    if len(piece := stdin.read(size)) == size:
        return piece
    raise Refused("incomplete")


def _delete(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    _remove(_entry_path(request["path"]))
    _say(stdout, {})


def _remove(entry: str) -> None:
    # Delete the entry itself, not the target of a link.
    if _is_directory(entry):
        shutil.rmtree(entry)
    else:
        os.unlink(entry)


def _is_directory(entry: str) -> bool:
    return stat.S_ISDIR(os.lstat(entry).st_mode)


def _mkdir(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    target = _inside(request["path"])
    if not os.path.isdir(target):
        (os.makedirs if request["parents"] else os.mkdir)(target)
        os.chmod(target, request["mode"])
    _say(stdout, {"entry": _entry(target, request["path"].rstrip("/"))})


def _move(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    source, target = _entry_path(request["path"]), _entry_path(request["to"])
    # A target without a source means that an earlier call has moved it: success.
    if os.path.lexists(source) or not os.path.lexists(target):
        if os.path.isdir(target) or (os.path.lexists(target) and _is_directory(source)):
            raise Refused("exists")
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_across_filesystems(source, target)
    _say(stdout, {"entry": _entry(target, request["to"])})


def _move_across_filesystems(source: str, target: str) -> None:
    """Move an entry between workspace and `/tmp`, all or nothing: an old target stays until the copy is complete."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target), prefix=".move-") as folder:
        copy = os.path.join(folder, "copy")
        if _is_directory(source):
            shutil.copytree(source, copy, symlinks=True, copy_function=_copy)
        else:
            _copy(source, copy)
        os.rename(copy, target)
    _remove(source)


def _copy(source: str, target: str) -> None:
    # Raise no OSError: `copytree` would continue after it and report an error that the gateway does not know.
    try:
        shutil.copy2(source, target, follow_symlinks=False)
    except shutil.SpecialFileError:
        raise Refused("special") from None
    except OSError as error:
        raise Refused(_WORDS.get(error.errno or 0, "failed")) from None


_OPERATIONS = {
    "delete": _delete,
    "list": _list,
    "mkdir": _mkdir,
    "move": _move,
    "read": _read,
    "stat": _stat,
    "write": _write,
}


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
