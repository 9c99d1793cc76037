"""File operations beside user code, as its user, in its workspace (the current directory).

One JSON argument in, `{"op": "list" | "read" | "write" | "delete", "path": …, "size": …}`; out comes one line of
JSON, then for `read` the content. Standard library only. Whatever user code has put there - links, pipes,
devices, a directory that changes meanwhile - costs at most an error.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from typing import Any, BinaryIO

PIECE = 256 * 1024
#: entries of a listing; a directory with more is cut
LIST_MAX = 10_000
#: seconds without progress after which whoever reads is taken for gone
READER_GONE = 600


class Refused(Exception):
    """The operation is not done; the first argument is a word the gateway knows."""


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Do one operation."""
    request = json.loads(argument)
    operation = {"list": _list, "read": _read, "write": _write, "delete": _delete}[request["op"]]
    try:
        operation(request, stdin, stdout)
    except Refused as refused:
        _say(stdout, {"error": refused.args[0]})
    except OSError as error:
        _say(stdout, {"error": _WORDS.get(error.errno or 0, "failed"), "errno": errno.errorcode.get(error.errno or 0)})


_WORDS = {
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
    """The real place of `path`, which must be in the workspace after all links are followed."""
    root = os.path.realpath(".")
    real = os.path.realpath(os.path.join(root, path))
    if real != root and not real.startswith(root + os.sep):
        raise Refused("outside")
    return real


def _entry(directory: str, name: str) -> dict[str, Any]:
    info = os.lstat(os.path.join(directory, name))
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": os.fsencode(name).decode("utf-8", "replace"),
        "type": kinds.get(stat.S_IFMT(info.st_mode), "special"),
        "size": info.st_size,
        "modified": info.st_mtime,
    }


def _list(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    directory = _inside(request["path"])
    entries = []
    for name in sorted(os.listdir(directory))[:LIST_MAX]:
        try:
            entries.append(_entry(directory, name))
        except FileNotFoundError:
            continue  # gone since it was listed
    _say(stdout, {"entries": entries})


def _open_regular(path: str) -> BinaryIO:
    # Not blocking: opening a pipe that nobody writes to would wait for ever.
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
            signal.alarm(READER_GONE)  # a process that writes for nobody keeps its container from ending
            stdout.write(piece)
            size -= len(piece)
    stdout.flush()


def _write(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> None:
    target = _inside(request["path"])
    if os.path.isdir(target):
        raise Refused("directory")
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    left: int = request["size"]
    # Written beside it and renamed: a reader sees the old file or the new one, never half of it.
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".upload-", delete=False) as file:
        try:
            while left > 0 and (piece := stdin.read(min(PIECE, left))):
                file.write(piece)
                left -= len(piece)
            file.flush()
            if left == 0:
                os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
    if left > 0:
        os.unlink(file.name)
        raise Refused("incomplete")
    _say(stdout, {"size": request["size"]})


def _delete(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    path = os.path.normpath(request["path"])
    name = os.path.basename(path)
    if name in {"", ".", ".."}:
        raise Refused("outside")
    target = os.path.join(_inside(os.path.dirname(path)), name)
    # The entry itself goes, not what a link points to.
    if stat.S_ISDIR(os.lstat(target).st_mode):
        shutil.rmtree(target)
    else:
        os.unlink(target)
    _say(stdout, {})


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
