"""File operations with the same user as user code, in its workspace (the current directory).

The only argument is JSON: `{"op": …, "path": …}` and further keys of the operation. The answer is one line of JSON; for
`read` the content follows. A relative path must stay in the workspace, an absolute path in `/tmp`. Standard library
only. If user code makes or changes links, pipes, devices or directories meanwhile, the worst result is an error.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.copying import PIECE, create, drop_compiled, open_regular, remove, rename, unused_name
from kernel_image.entries import below, describe
from kernel_image.file_names import name_of
from kernel_image.protocol import FRAME_FORMAT, TRUNCATED
from kernel_image.walk import Place, Refused, find, open_directory, refusal

#: maximum entries of a listing; further entries are left out
LIST_MAX = 10_000
#: maximum bytes of a listing; the gateway accepts slightly more
LIST_BYTES = 6 * 1024**2
#: length prefix of each piece of content whose size is not known beforehand; an empty piece ends the content
FRAME = struct.Struct(FRAME_FORMAT)
#: seconds without progress after which this program ends, because its reader has probably ended
READER_GONE = 600


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the operation that the JSON text `argument` describes."""
    request = json.loads(argument)
    request |= {key: name_of(request[key]) for key in ("path", "to") if key in request}
    try:
        _OPERATIONS[request["op"]](request, stdin, stdout)
    except (Refused, OSError) as error:
        _say(stdout, refusal(error))
    except RecursionError:  # directories nested deeper than `shutil` can follow
        _say(stdout, {"error": "failed", "errno": "ELOOP"})


def _say(stdout: BinaryIO, value: dict[str, Any]) -> None:
    stdout.write(json.dumps(value).encode() + b"\n")
    stdout.flush()


def _find_entry(path: str) -> Place:
    """Find an entry. A link at the path's end is not followed.

    Raises:
        Refused: when the path names the workspace or `/tmp` itself.
    """
    place = find(path, follow=False)
    if place.name == ".":
        raise Refused("outside")
    return place


def _list(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    entries: list[dict[str, Any]] = []
    size, truncated = 0, False
    with find(request["path"]) as place:
        for entry in below(place, request["path"].rstrip("/"), request.get("depth", 1)):
            size += len(json.dumps(entry)) + 2
            truncated = size > LIST_BYTES or len(entries) == LIST_MAX
            if truncated:
                break
            entries.append(entry)
    _say(stdout, {"entries": entries, TRUNCATED: truncated})


def _stat(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    with find(request["path"]) as place:
        _say(stdout, {"entry": describe(place.directory, place.name, request["path"].rstrip("/"))})


def _read(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    with find(request["path"]) as place, os.fdopen(open_regular(place.directory, place.name), "rb") as file:
        info = os.fstat(file.fileno())
        size, tag = info.st_size, f"{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}-{info.st_ctime_ns:x}"
        partial = "part" in request and request["tag"] in {None, tag}
        start, count = _part(size, *request["part"]) if partial else (0, size)
        told = {"size": size, "modified": info.st_mtime, "tag": tag, "start": start, "count": count, "partial": partial}
        _say(stdout, told)
        file.seek(start)
        while count > 0 and (piece := file.read(min(PIECE, count))):
            _expect_reader()
            stdout.write(piece)
            count -= len(piece)
    stdout.flush()


def _expect_reader() -> None:
    """End this program if it makes no progress: a blocked writer keeps its container from ending.

    A thread of the toolbox is not blocked for ever: its connection is closed.
    """
    if threading.current_thread() is threading.main_thread():
        signal.alarm(READER_GONE)


def _part(size: int, start: int, most: int | None) -> tuple[int, int]:
    """Return the first byte and the length of a part of a file.

    Args:
        size: size of the file in bytes.
        start: number of the first wanted byte. A negative number counts from the file's end.
        most: maximum length. None means up to the file's end.
    """
    start = max(size + start, 0) if start < 0 else min(start, size)
    return start, size - start if most is None else min(most, size - start)


def _write(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> None:
    with find(request["path"]) as place:
        if place.is_directory:
            raise Refused("directory")
        if request.get("parents", True):
            place.make_directory()
        size = _replace(place, _pieces(request.get("size"), stdin), _mode(request, place.info))
        drop_compiled(place.directory, place.name)
    _say(stdout, {"size": size})


def _mode(request: dict[str, Any], replaced: os.stat_result | None) -> int:
    """Return the permissions of a file to write.

    The request's `mode` has priority, then the mode of a replaced file, then the request's `new_mode`.
    """
    if request.get("mode") is not None:
        return int(request["mode"])
    if replaced is not None and stat.S_ISREG(replaced.st_mode):
        return replaced.st_mode & 0o777
    return int(request.get("new_mode", 0o600))


def _replace(place: Place, content: Iterator[bytes], mode: int) -> int:
    """Write a temporary file and rename it, so that a reader sees the old file or the new file, never a part.

    Returns:
        the size of the file in bytes.
    """
    name, directory = unused_name("upload"), place.directory
    with os.fdopen(create(directory, name), "wb") as file:
        try:
            for piece in content:
                file.write(piece)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.rename(name, place.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(name, dir_fd=directory)
            raise
        return file.tell()


def _pieces(size: int | None, stdin: BinaryIO) -> Iterator[bytes]:
    """Yield the content from standard input: `size` bytes, or without a size pieces with a length prefix."""
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
    with _find_entry(request["path"]) as place:
        remove(place.directory, place.name)
    _say(stdout, {})


def _mkdir(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    with find(request["path"]) as place:
        if request["parents"]:
            place.make_directory()
        if not place.is_directory:
            os.mkdir(place.name, 0o700, dir_fd=place.directory)
            made = open_directory(place.directory, place.name)
            os.fchmod(made, request["mode"])  # independent of the umask
            os.close(made)
        _say(stdout, {"entry": describe(place.directory, place.name, request["path"].rstrip("/"))})


def _move(request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    replace = request.get("replace", True)
    with _find_entry(request["path"]) as source, _find_entry(request["to"]) as target:
        # If there is only a target, an earlier call has moved the entry. That is a success if targets may be replaced.
        if source.info is not None or target.info is None or not replace:
            if source.info is not None and request.get("parents"):
                target.make_directory()
            if replace and (_leads_to_directory(target) or (target.info is not None and source.is_directory)):
                raise Refused("exists")
            rename(source, target, replace=replace)
            drop_compiled(target.directory, target.name)
        _say(stdout, {"entry": describe(target.directory, target.name, request["to"])})


def _leads_to_directory(place: Place) -> bool:
    try:
        return stat.S_ISDIR(os.stat(place.name, dir_fd=place.directory).st_mode)
    except OSError:
        return False


def _space(_request: dict[str, Any], _stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Answer with the size of the workspace's file system and the used space, in bytes."""
    info = os.statvfs(".")
    used = info.f_blocks - info.f_bfree
    _say(stdout, {"size": info.f_blocks * info.f_frsize, "used": used * info.f_frsize})


_OPERATIONS = {
    "delete": _delete,
    "list": _list,
    "mkdir": _mkdir,
    "move": _move,
    "read": _read,
    "space": _space,
    "stat": _stat,
    "write": _write,
}


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
