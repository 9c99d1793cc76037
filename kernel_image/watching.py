"""Reports what changes in a directory beside user code, as its user, until its standard input ends.

The only argument is JSON with `path`, as in `files.py`, `recursive`, and `every`: seconds between two looks, or null
for a look only when one is asked for, by a line on standard input. Standard output is lines of JSON: `{"changes": []}`
when the directory is watched, then `{"changes": [[KIND, PATH], …]}` for each look that was asked for or found any, `{}`
as a sign of life, and last `{"error": …}` when the directory cannot be watched (any more). Standard library only.

It compares looks, so what is made and removed between two of them is not seen. inotify would see that, but under gVisor
it reports only changes made in the same container, and each kernel of a sandbox has a container of its own.
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

if __name__ == "__main__":  # in isolated mode Python looks for no modules beside a program
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.copying import UNFINISHED
from kernel_image.entries import each_below
from kernel_image.processes import SIGN_OF_LIFE
from kernel_image.protocol import TREE_MAX
from kernel_image.spelling import named, spelt
from kernel_image.walk import Refused, find, refusal

#: bytes of the changes of one look
CHANGES_BYTES = 6 * 1024**2
#: the most of a processor's time that looks may take, as a part of one
SHARE = 0.1


class Seen(NamedTuple):
    """What a look found at one path."""

    #: the entry whatever its name is
    entry: int
    kind: int
    size: int
    modified: int
    mode: int


Look = Mapping[str, Seen]


def look(path: str, *, recursive: bool) -> Look:
    """Look at a directory.

    Raises:
        OSError: when there is none, or it cannot be read.
        Refused: when it has too many entries, is none, or is elsewhere.
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
    """Yield kind and path of what has changed, in an order in which it could have happened.

    An entry with another name gives `rename` for the old one and `create` for the new one, as inotify does.
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
            # The time of a directory changes with its entries, which are reported themselves.
            if seen.kind != stat.S_IFDIR and earlier != seen._replace(mode=earlier.mode):
                yield "write", path


def watch(request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Watch a directory until the end of the input.

    Raises:
        OSError: when there is none at first, or it cannot be read.
        Refused: see `look`; or too much has changed.
    """
    path, recursive, every = named(request["path"]), request["recursive"], request["every"]
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
        found = [[kind, spelt(name)] for kind, name in changes(before, after)]
        before = after
        if every is not None:
            pause = max(every, (time.process_time() - began) / SHARE)
        if asked or found or time.monotonic() - said >= SIGN_OF_LIFE:
            _say(stdout, {"changes": found} if asked or found else {})
            said = time.monotonic()


def _say(stdout: BinaryIO, value: dict[str, Any]) -> None:
    line = json.dumps(value).encode() + b"\n"
    if len(line) > CHANGES_BYTES:
        raise Refused("many")
    stdout.write(line)
    stdout.flush()


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Watch the directory that `argument` names."""
    try:
        watch(json.loads(argument), stdin, stdout)
    except (Refused, OSError) as error:
        _say(stdout, refusal(error))


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
