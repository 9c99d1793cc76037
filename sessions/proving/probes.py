"""Attempts of code in a kernel, and of the host for control. Standard library only: a kernel gets this module's text.

Answers are JSON values.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor

_MIB = 1024**2


def reached(targets: list[list], seconds: float = 2.0) -> list[list]:  # type: ignore[type-arg]  # JSON
    """Return each `[host, port]` that accepts a TCP connection. All are tried at once, for at most `seconds`."""
    with ThreadPoolExecutor(max_workers=len(targets) + 1) as threads:
        answers = list(threads.map(lambda target: _accepts(target[0], target[1], seconds), targets))
    return [target for target, answer in zip(targets, answers, strict=True) if answer]


def _accepts(host: str, port: int, seconds: float) -> bool:
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError:
        return False
    return True


def reaches_itself() -> bool:
    """Return whether this process reaches a port of its own. This is the control of `reached`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = ["127.0.0.1", listener.getsockname()[1]]
        return reached([target]) == [target]


def writable(folders: list[str]) -> list[str]:
    """Return the folders in which a file can be made."""
    found = []
    for folder in folders:
        with contextlib.suppress(OSError):
            tempfile.TemporaryFile(dir=folder).close()
            found.append(folder)
    return found


def open_to_all(folders: list[str]) -> list[str]:
    """Return the folders in which the mode allows every user to make files."""
    return [folder for folder in folders if pathlib.Path(folder).is_dir() and pathlib.Path(folder).stat().st_mode & 2]


def privileges() -> dict[str, int]:
    """Return the user id, and the capabilities that the process has and may get, each as a number of bits."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {"uid": os.getuid()} | {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")}


def filled(folder: str, limit: int) -> list:  # type: ignore[type-arg]  # JSON
    """Fill a folder with files of one MiB, at most `limit`; return how many there are, and the error at the end."""
    place = pathlib.Path(folder)
    place.mkdir()
    for number in range(limit):
        try:
            # without a buffer: an error for data that does not fit would come only when the file is closed
            with (place / str(number)).open("wb", buffering=0) as file:
                if file.write(b"x" * _MIB) < _MIB:
                    return [number, "ENOSPC"]
        except OSError as error:
            return [number, errno.errorcode.get(error.errno or 0, str(error))]
    return [limit, ""]


def emptied(folder: str) -> int:
    """Remove the files that `filled` has made, and the folder; return how many files there were."""
    files = list(pathlib.Path(folder).iterdir())
    for file in files:
        file.unlink()
    pathlib.Path(folder).rmdir()
    return len(files)
