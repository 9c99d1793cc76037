"""Reports changes in a directory, with the same user as user code, until standard input ends.

The only argument is JSON with `path`, as in `files.py`, `recursive`, and `every`. The program looks at the directory
every `every` seconds, and for each line on standard input; if `every` is null, only for each line.
Standard output is lines of JSON: `{"changes": []}` when the watch has begun, then `{"changes": [[KIND, PATH], …]}` for
each look that has found changes or was asked for, `{}` as a keep-alive, and at last `{"error": …}` if the directory
cannot be watched (any more). Standard library only.

The program compares two looks, so it misses entries that are made and removed between them. inotify would not miss
them, but under gVisor it reports only changes of the same container, and each kernel of a sandbox has its own.
"""

from __future__ import annotations

import json
import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.copying import UNFINISHED
from kernel_image.entries import each_below
from kernel_image.file_names import name_of, text_of
from kernel_image.protocol import KEEPALIVE, TREE_MAX
from kernel_image.walk import Refused, find, refusal

#: maximum bytes of the changes of one look
CHANGES_BYTES = 6 * 1024**2
#: maximum part of one processor's time for looks
SHARE = 0.1


class Seen(NamedTuple):
    """The data that a look has found at one path."""

    #: inode number, which stays the same when the entry is renamed
    entry: int
    kind: int
    size: int
    modified: int
    mode: int


Look = Mapping[str, Seen]


def look(path: str, *, recursive: bool) -> Look:
    """Return the entries of a directory, by path.

    Raises:
        OSError: when the directory does not exist, or cannot be read.
        Refused: when the path is not that of a directory, leads elsewhere, or the directory has too many entries.
    """
    found: dict[str, Seen] = {}
    with find(path) as place:
        if place.info is not None and not place.is_directory:
            raise Refused("file")
        for way, info in each_below(place, math.inf if recursive else 1):
            if UNFINISHED.fullmatch(way[-1]):
                continue
            if len(found) == TREE_MAX:
                raise Refused("many")
            kind = stat.S_IFMT(info.st_mode)
            found["/".join(way)] = Seen(info.st_ino, kind, info.st_size, info.st_mtime_ns, stat.S_IMODE(info.st_mode))
    return found


def changes(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    """Yield the kind and the path of each change, in an order in which the changes could have happened.

    For an entry with a new name there is a `rename` with the old and a `create` with the new name, as with inotify.
    """
    gone = {seen: path for path, seen in before.items() if path not in after}
    come = {seen for path, seen in after.items() if path not in before}
    for seen, path in reversed(gone.items()):
        yield "rename" if seen in come else "remove", path
    for path, seen in after.items():
        earlier = before.get(path)
        if earlier is not None and earlier.kind != seen.kind:
            yield "remove", path
            earlier = None
        if earlier is None:
            yield "create", path
            if seen.size and seen.kind == stat.S_IFREG and seen not in gone:
                yield "write", path
        else:
            if earlier.mode != seen.mode:
                yield "chmod", path
            # The time of a directory changes with its entries, whose changes are reported already.
            if seen.kind != stat.S_IFDIR and earlier != seen._replace(mode=earlier.mode):
                yield "write", path


def watch(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Watch a directory until the end of standard input.

    Raises:
        OSError: when the directory does not exist at first, or cannot be read.
        Refused: when `look` raises it, or there are too many changes for one line.
    """
    path, recursive, every = name_of(request["path"]), request["recursive"], request["every"]
    before, pause = look(path, recursive=recursive), every
    _say(stdout, {"changes": []})
    said = time.monotonic()
    while True:
        asked, _, _ = select.select([stdin], [], [], pause)
        if asked and not os.read(stdin.fileno(), 4096):
            return
        began = time.process_time()
        try:
            after = look(path, recursive=recursive)
        except FileNotFoundError:
            after = {}
        found = [[kind, text_of(name)] for kind, name in changes(before, after)]
        before = after
        if every is not None:
            pause = max(every, (time.process_time() - began) / SHARE)
        if asked or found or time.monotonic() - said >= KEEPALIVE:
            _say(stdout, {"changes": found} if asked or found else {})
            said = time.monotonic()


def _say(stdout: BinaryIO, value: dict[str, Any]) -> None:
    line = json.dumps(value).encode() + b"\n"
    if len(line) > CHANGES_BYTES:
        raise Refused("many")
    stdout.write(line)
    stdout.flush()


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Watch the directory that the JSON text `argument` names."""
    try:
        watch(json.loads(argument), stdin, stdout)
    except (Refused, OSError) as error:
        _say(stdout, refusal(error))


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
