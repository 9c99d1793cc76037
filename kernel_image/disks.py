"""Makes the disks of workspaces. A disk is an image file with a file system, so a workspace cannot outgrow its limit.

This program runs no user code and is not in the sandbox. The gateway runs it in its own container, without network and
capabilities, with access to loop devices. The program reads one JSON request per line from standard input, and answers
each request with one line, which repeats the request's `id`:

- `{"op": "attach", "name": …, "size": bytes, "mode": "0700"}` makes the disk if it does not exist, attaches it to a
  loop device and answers `{"device": "/dev/loop7", "room": bytes}`. The engine mounts that device. `room` is the space
  that all disks together may use on the disk of their images.
- `{"op": "delete", "name": …}` detaches and deletes the disk if it exists, and answers `{}`.
- `{"op": "names"}` answers `{"names": […]}`.

Requests about the same disk are served one after the other. Requests about different disks are served at the same time,
so no session waits while another session's disk is made or repaired.

The answer to a failed request is `{"error": …}`. All requests may be repeated. The system knows which disks are
attached, so this program keeps no state and may end at any time. The current directory contains the image files.
Source of the requests to loop devices: linux/loop.h, and loop(4).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_SET_FD, _CLEAR_FD, _SET_STATUS, _GET_STATUS, _GET_FREE = 0x4C00, 0x4C01, 0x4C04, 0x4C05, 0x4C82
#: `struct loop_info64`: device, inode, …, number, …, name of the file, …
_STATUS = struct.Struct("=5Q4I64s64s32s2Q")
_INODE, _NAME = 1, 9
#: attempts to get a free loop device; between two steps another program may take the device
_ATTEMPTS = 20
#: directory with the host's devices, including devices that appear later
_DEVICES = "/devices"
_SUFFIX, _HALF_MADE = ".img", ".new"
#: owner of a workspace in the sandbox
_UID = 65532
#: bytes of the host's disk that stay free when a new disk is made
_RESERVE = 1024**3
_MIB = 1024**2
#: options of mke2fs. There is no journal, because no limit of a kernel would cover its work. There are many inodes, for
#: small files. The groups of blocks are small: without a journal, Linux inspects, for each new file, all inodes of a
#: group that were freed in the last minutes. A small group has 2,048 inodes, a group of the usual size 16,384.
_FEATURES = (
    *("-b", "4096", "-m", "0", "-i", "8192", "-g", "4096", "-O", "^has_journal,^resize_inode"),
    *("-E", f"lazy_itable_init=1,nodiscard,root_owner={_UID}:{_UID}"),
)
#: exit status of e2fsck after it has repaired the file system
_REPAIRED = 1
#: what e2fsck says when it makes the directory for files without a name, which it does in every repair. The session has
#: not made this directory, so it is removed, unless there are such files
_LOST_MADE, _FORGET_LOST = "/lost+found not found", "rmdir lost+found\n"
_TOOLS = {"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"}
#: requests that are served at the same time. One tenant may have fewer, so a place for other tenants is always left
_AT_ONCE = 8

#: held while an answer is written
_saying = threading.Lock()
#: held while images are made or removed, and while the space that they may use is computed
_directory = threading.Lock()
#: names of the images that a current request is about
_served: set[str] = set()
_served_changed = threading.Condition()
#: the last known loop device of each image, by the image's name; the device may belong to another image now
_last: dict[str, str] = {}


class Failed(Exception):
    """A request failed. The text is the reason."""


def main() -> None:
    """Answer requests until standard input ends."""
    os.umask(0o077)  # every user of the host can see the path of an image, but only root may read it
    for half_made in (file for file in os.listdir() if file.endswith(_HALF_MADE)):
        os.unlink(half_made)
    with ThreadPoolExecutor(_AT_ONCE) as serving:
        for line in sys.stdin.buffer:
            serving.submit(_serve, json.loads(line))


def _serve(request: dict[str, Any]) -> None:
    try:
        answer = _answer(request)
    except (Failed, OSError) as error:
        answer = {"error": str(error)}
    with _saying:
        os.write(1, json.dumps(answer | {"id": request["id"]}).encode() + b"\n")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "names":
        return {"names": [file.removesuffix(_SUFFIX) for file in os.listdir() if file.endswith(_SUFFIX)]}
    file = request["name"] + _SUFFIX
    with _turn(file):
        if request["op"] == "delete":
            _delete(file)
            return {}
        if not os.path.exists(file):
            _make(file, request["size"], request["mode"])
            return {"device": _attach(file), "room": _room()}
        device = _attached(file)
        if device is None:
            # Without a journal, a crash of the machine leaves errors, which e2fsck repairs. A clean disk takes 10 ms.
            if _LOST_MADE in _run("e2fsck", "-y", file, most=_REPAIRED):
                _run("debugfs", "-w", "-f", "-", file, said=_FORGET_LOST)
            device = _attach(file)
        return {"device": device, "room": _room()}


@contextlib.contextmanager
def _turn(file: str) -> Iterator[None]:
    """Wait until no other request is about this image, and keep others waiting during the context."""
    with _served_changed:
        _served_changed.wait_for(lambda: file not in _served)
        _served.add(file)
    try:
        yield
    finally:
        with _served_changed:
            _served.remove(file)
            _served_changed.notify_all()


def _make(file: str, size: int, mode: str) -> None:
    # The file system's own tables take 3 % of it, and Linux keeps 2 % of it free.
    image = size + size // 16 + _MIB
    made = file + _HALF_MADE
    with _directory:
        promised = sum(max(0, found.st_size - 512 * found.st_blocks) for found in map(os.stat, os.listdir()))
        if _free() < promised + image:
            raise Failed("the disk of the engine's machine has no room for the files of another session")
        with open(made, "wb") as blank:
            blank.truncate(image)
    _run("mke2fs", "-q", "-F", "-t", "ext4", *_FEATURES, made)
    _run("debugfs", "-w", "-f", "-", made, said=f"{_FORGET_LOST}set_inode_field / mode 04{mode}\n")
    with _directory:
        os.rename(made, file)


def _free() -> int:
    """Return the bytes of the host's disk that disks may use in addition to those that they use now."""
    disk = os.statvfs(".")
    return max(0, disk.f_bavail * disk.f_frsize - _RESERVE)


def _room() -> int:
    with _directory:
        return _free() + sum(512 * found.st_blocks for found in map(os.stat, os.listdir()))


def _delete(file: str) -> None:
    if not os.path.exists(file):
        return
    if device := _attached(file):
        with _opened(_host(device)) as loop:
            fcntl.ioctl(loop, _CLEAR_FD)
    _last.pop(file, None)
    with _directory:
        os.unlink(file)


def _attach(file: str) -> str:
    with _opened(f"{_DEVICES}/loop-control") as control, _opened(file) as image:
        for _ in range(_ATTEMPTS):
            device = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            try:
                with _opened(_host(device)) as loop:
                    fcntl.ioctl(loop, _SET_FD, image)
                    fcntl.ioctl(loop, _SET_STATUS, _STATUS.pack(*[0] * _NAME, file.encode(), b"", b"", 0, 0))
            except OSError as error:
                if error.errno != errno.EBUSY:  # another program has taken it meanwhile
                    raise
            else:
                _last[file] = device
                return device
    raise Failed("no loop device is free")


def _attached(file: str) -> str | None:
    """Return the loop device that a disk is attached to, or None if it is not attached."""
    last = _last.get(file)
    # The last known device comes first, because opening all devices takes longer the more sessions there are.
    for device in [*([last] if last else []), *(f"/dev/{entry}" for entry in os.listdir("/sys/block"))]:
        if _shows(device, file):
            _last[file] = device
            return device
    return None


def _shows(device: str, file: str) -> bool:
    if not os.path.exists(f"/sys/block/{os.path.basename(device)}/loop"):
        return False  # not a loop device, or not attached
    with _opened(_host(device)) as loop:
        try:
            status = _STATUS.unpack(fcntl.ioctl(loop, _GET_STATUS, bytes(_STATUS.size)))
        except OSError:
            return False  # detached meanwhile
    return bool(status[_INODE] == os.stat(file).st_ino and status[_NAME].rstrip(b"\0") == file.encode())


def _host(device: str) -> str:
    """Return the path of a host's device in this container."""
    return device.replace("/dev", _DEVICES, 1)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _run(*command: str, said: str = "", most: int = 0) -> str:
    """Run a program of e2fsprogs.

    Args:
        command: program and arguments.
        said: standard input of the program.
        most: highest exit status that is not a failure.

    Returns:
        its standard output.

    Raises:
        Failed: when the program is missing or fails.
    """
    try:
        done = subprocess.run(  # noqa: S603 - programs of this image
            command, check=False, input=said, capture_output=True, text=True, env=_TOOLS
        )
    except FileNotFoundError:
        raise Failed(f"the image has no {command[0]}: build it again (make image)") from None
    if done.returncode > most:
        raise Failed(f"{command[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


if __name__ == "__main__":
    main()
