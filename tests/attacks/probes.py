"""Attempts of hostile code. Standard library only: the same functions run in a session, in a container of the test
and on the host itself, so that an attempt that fails in the session is seen to succeed elsewhere.

Answers are JSON values.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import re
import select
import shutil
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable

# -- network ---------------------------------------------------------------------------------------------------


def reached(targets: list[list], seconds: float = 2.0) -> list[list]:  # type: ignore[type-arg]  # JSON
    """Return each `[host, port]` that accepts a TCP connection; all are tried at the same time."""
    trying = {}
    for target in targets:
        connection = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
        connection.settimeout(0)
        if connection.connect_ex(_address(*target)) in {0, errno.EINPROGRESS}:
            trying[connection] = target
        else:
            connection.close()
    found = []
    deadline = time.monotonic() + seconds
    while trying and (left := deadline - time.monotonic()) > 0:
        for connection in select.select([], list(trying), [], left)[1]:
            target = trying.pop(connection)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.append(target)
            connection.close()
    for connection in trying:
        connection.close()
    return sorted(found)


def _address(host: str, port: int) -> tuple:  # type: ignore[type-arg]  # a socket's address has two forms
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]


def answered(targets: list[list], payload: str, seconds: float = 1.0) -> list[list]:  # type: ignore[type-arg]
    """Return each `[host, port]` that answers a UDP datagram (given in hexadecimal)."""
    asking = {}
    for target in targets:
        sender = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            sender.sendto(bytes.fromhex(payload), _address(*target))
        asking[sender] = target
    return sorted(_heard(asking, seconds))


def _heard(asking: dict, seconds: float) -> list:  # type: ignore[type-arg]
    """Return the values of the sockets that receive a datagram; close all sockets."""
    found = []
    waiting = set(asking)
    deadline = time.monotonic() + seconds
    while waiting and (left := deadline - time.monotonic()) > 0:
        for sender in select.select(list(waiting), [], [], left)[0]:
            waiting.remove(sender)
            with contextlib.suppress(OSError):  # a refusal is no answer
                sender.recvfrom(4096)
                found.append(asking[sender])
    for sender in asking:
        sender.close()
    return found


def resolved(names: list[str]) -> list[str]:
    """Return the names that the system's resolver finds."""
    found = []
    for name in names:
        with contextlib.suppress(OSError):
            socket.getaddrinfo(name, 80)
            found.append(name)
    return found


def echoed(hosts: list[str], seconds: float = 1.0) -> list[str]:
    """Return the hosts that answer an ICMP echo, sent with the socket that needs no privilege."""
    asking = {}
    for host in hosts:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
        with contextlib.suppress(OSError):
            sender.sendto(struct.pack(">BBHHH", 8, 0, 0xF7FE, 0, 1), (host, 0))
        asking[sender] = host
    return sorted(_heard(asking, seconds))


def raw_sockets() -> list[str]:
    """Return the kinds of socket that can be opened and that send packets past the network's rules."""
    kinds = {
        "packet": (17, socket.SOCK_RAW, socket.htons(3)),
        "packet-datagram": (17, socket.SOCK_DGRAM, socket.htons(3)),
        "raw-icmp": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "raw-tcp": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
        "raw-ip": (socket.AF_INET, socket.SOCK_RAW, 255),
        "raw-ipv6": (socket.AF_INET6, socket.SOCK_RAW, 58),
    }
    opened = []
    for name, kind in kinds.items():
        with contextlib.suppress(OSError):
            socket.socket(*kind).close()
            opened.append(name)
    return opened


# -- identity and privileges -----------------------------------------------------------------------------------

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_GET_NO_NEW_PRIVS = 39


def identity() -> dict[str, object]:
    """Return the user, groups and privileges of the process."""
    with open("/proc/self/status") as file:  # noqa: PTH123 - a probe is short
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return {
        "uids": sorted({os.getuid(), os.geteuid()}),
        "gids": sorted({os.getgid(), os.getegid(), *os.getgroups()}),
        "capabilities": {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")},
        "no_new_privileges": _LIBC.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        "hostname": platform.node(),
    }


def mounted(folders: list[str]) -> list[list]:  # type: ignore[type-arg]  # JSON
    """Return each folder's file system, owner, mode and mount options that refuse set-uid files and devices."""
    found = []
    for folder in folders:
        status, flags = os.stat(folder), os.statvfs(folder).f_flag  # noqa: PTH116
        kept = [name for name, bit in {"nosuid": os.ST_NOSUID, "nodev": os.ST_NODEV}.items() if flags & bit]
        with open("/proc/mounts") as file:  # noqa: PTH123
            kind = next(line.split()[2] for line in file if line.split()[1] == folder)
        found.append([kind, status.st_uid, status.st_gid, oct(stat.S_IMODE(status.st_mode)), kept])
    return found


def boot_log() -> str:
    """Return the log of the operating system's kernel since its start."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, check=False)
    return done.stdout + done.stderr


def system_calls() -> list[str]:
    """Return the administrators' system calls that succeed. Never to be run outside a container."""
    tries: dict[str, Callable[[], int]] = {
        "mount": lambda: _LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None),
        "new mounts": lambda: _LIBC.unshare(0x00020000),
        "new network": lambda: _LIBC.unshare(0x40000000),
        "host name": lambda: _LIBC.sethostname(b"evil", 4),
        "root": lambda: _LIBC.setuid(0),
        "chroot": lambda: _LIBC.chroot(b"/tmp"),
    }
    return [name for name, call in tries.items() if call() == 0]


def devices_by_number(numbers: list[list]) -> list[list]:  # type: ignore[type-arg]  # JSON
    """Return the devices, as type, major and minor number, that can be opened with a self-made node."""
    node = b"/tmp/node"
    found = []
    for number in numbers:
        kind, major, minor = number
        mode = {"b": stat.S_IFBLK, "c": stat.S_IFCHR}[kind] | 0o666
        if _LIBC.mknod(node, mode, os.makedev(major, minor)) == 0:
            with contextlib.suppress(OSError):
                os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK))
                found.append(number)
            os.unlink(node)  # noqa: PTH108
    return found


def holding(paths: list[str], mark: str, folders: list[str], numbers: list[list]) -> list[str]:  # type: ignore[type-arg]
    """Return the files and devices in whose first 64 MiB a mark is found.

    Args:
        paths: files and devices.
        mark: the mark.
        folders: in each of them a node is made for each device, and a symbolic link to each path; all are tried, too.
        numbers: devices, as type, major and minor number.
    """
    ways = list(paths)
    for folder in folders:
        for index, path in enumerate(paths):
            ways.append(os.path.join(folder, f"link-{index}"))  # noqa: PTH118
            os.symlink(path, ways[-1])  # noqa: PTH211
        for kind, major, minor in numbers:
            ways.append(os.path.join(folder, f"node-{kind}-{major}-{minor}"))  # noqa: PTH118
            mode = {"b": stat.S_IFBLK, "c": stat.S_IFCHR}[kind] | 0o666
            _LIBC.mknod(os.fsencode(ways[-1]), mode, os.makedev(major, minor))
    found = [way for way in ways if _holds(way, mark.encode())]
    for way in ways[len(paths) :]:
        with contextlib.suppress(OSError):
            os.unlink(way)  # noqa: PTH108
    return found


def _holds(path: str, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return any(mark in os.pread(descriptor, 1024**2 + len(mark), start << 20) for start in range(64))
        finally:
            os.close(descriptor)
    return False


def linked(files: list[str], folder: str) -> list[str]:
    """Return the files that can be given a further name in a folder, directly or by an open descriptor."""
    found = []
    name = os.path.join(folder, "hard")  # noqa: PTH118
    for path in files:
        with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
            for source in (path, f"/proc/self/fd/{file.fileno()}"):
                with contextlib.suppress(OSError):
                    os.link(source, name, follow_symlinks=True)
                    os.unlink(name)  # noqa: PTH108
                    found.append(path)
                    break
    return found


def crowded(folder: str, limit: int) -> list:  # type: ignore[type-arg]  # JSON
    """Return how many empty files fit into a folder, at most `limit`, and the error at the end; all are removed."""
    place = os.path.join(folder, "crowd")  # noqa: PTH118
    os.mkdir(place)  # noqa: PTH102
    try:
        for number in range(limit):
            try:
                os.close(os.open(os.path.join(place, str(number)), os.O_CREAT | os.O_WRONLY))  # noqa: PTH118
            except OSError as error:
                return [number, errno.errorcode[error.errno or 0]]
        return [limit, None]
    finally:
        shutil.rmtree(place)


def tunnels() -> list[str]:
    """Return the devices that make a network interface or a file system. Never to be run outside a container."""
    made = []
    with contextlib.suppress(OSError), open("/dev/net/tun", "r+b", buffering=0) as device:  # noqa: PTH123
        fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"evil0", 2))
        made.append("tun")
    with contextlib.suppress(OSError), open("/dev/fuse", "r+b", buffering=0) as device:  # noqa: PTH123
        options = f"fd={device.fileno()},rootmode=40000,user_id=0,group_id=0".encode()
        if _LIBC.mount(b"evil", b"/tmp", b"fuse", 0, options) == 0:
            made.append("fuse")
    return made


# -- files -----------------------------------------------------------------------------------------------------


def writable(folders: list[str]) -> list[str]:
    """Return the folders in which a file can be made."""
    found = []
    for folder in folders:
        name = os.path.join(folder, "written-by-the-sandbox")  # noqa: PTH118
        with contextlib.suppress(OSError):
            with open(name, "w") as file:  # noqa: PTH123
                file.write("x")
            os.unlink(name)  # noqa: PTH108
            found.append(folder)
    return found


def changeable(files: list[str]) -> list[str]:
    """Return the files that can be opened for writing; they are not changed."""
    found = []
    for name in files:
        with contextlib.suppress(OSError):
            os.close(os.open(name, os.O_WRONLY))
            found.append(name)
    return found


def filled(folder: str, limit: int = 1024) -> list:  # type: ignore[type-arg]  # JSON
    """Return how many MiB fit into a folder, at most `limit`, and the error at the end; all is removed again."""
    place = os.path.join(folder, "filling")  # noqa: PTH118
    os.mkdir(place)  # noqa: PTH102
    try:
        return appended([os.path.join(place, str(number)) for number in range(limit)])  # noqa: PTH118
    finally:
        shutil.rmtree(place)


def grown(path: str, limit: int) -> list:  # type: ignore[type-arg]  # JSON
    """Return how many MiB one file can hold, at most `limit`, and the error at the end; the file is removed again."""
    try:
        return appended([path] * limit)
    finally:
        os.unlink(path)  # noqa: PTH108


def appended(files: list[str]) -> list:  # type: ignore[type-arg]  # JSON
    """Append a MiB to one file after the other; return how many MiB were written, and the error at the end."""
    block = b"x" * 1024**2
    for written, name in enumerate(files):
        try:
            with open(name, "ab", buffering=0) as file:  # noqa: PTH123
                if file.write(block) < len(block):
                    return [written, "short"]
        except OSError as error:
            return [written, errno.errorcode[error.errno or 0]]
    return [len(files), None]


def listed(folder: str) -> list[str]:
    """Return the names in a folder."""
    return sorted(os.listdir(folder))  # noqa: PTH208


def resolvers() -> list[str]:
    """Return the addresses of the system's resolvers."""
    with open("/etc/resolv.conf") as file:  # noqa: PTH123
        return [line.split()[1] for line in file if line.startswith("nameserver")]


def special_files(folders: list[str]) -> list[list]:  # type: ignore[type-arg]  # JSON
    """Return the sockets and devices below the folders, as kind and path."""
    kinds = {stat.S_IFSOCK: "socket", stat.S_IFBLK: "block", stat.S_IFCHR: "character"}
    found = []
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)  # noqa: PTH118
                with contextlib.suppress(OSError):
                    if kind := kinds.get(stat.S_IFMT(os.lstat(path).st_mode)):
                        found.append([kind, path])
    return sorted(found)


def readable(files: list[str]) -> list[str]:
    """Return the files from which at least one byte can be read."""
    found = []
    for name in files:
        with contextlib.suppress(OSError), open(name, "rb", buffering=0) as file:  # noqa: PTH123
            if file.read(1):
                found.append(name)
    return found


def surroundings() -> str:
    """Return every process's arguments, environment and mounts, and the beginning of the files in some folders."""
    pieces = [repr(sorted(os.environ.items()))]  # noqa: TID251 - this is the sandbox's
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        pieces += [_content(f"/proc/{process}/{name}") for name in ("cmdline", "environ", "mountinfo")]
    for folder in ("/home/kernel", "/workspace", "/tmp", "/run", "/etc"):
        for place, _, names in os.walk(folder):
            pieces += [_content(os.path.join(place, name)) for name in names]  # noqa: PTH118
    return "\n".join(pieces)


def _content(path: str) -> str:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            # Only text: what a fonts' list or a database has besides would be more than the output of a cell.
            return re.sub(rb"[^\x20-\x7e]+", b"\n", os.read(descriptor, 65536)).decode()
        finally:
            os.close(descriptor)
    return ""


# -- processes and descriptors ---------------------------------------------------------------------------------


def spawned(wanted: int) -> int:
    """Return how many of `wanted` processes can live at the same time; all are ended again."""
    children: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):
        while len(children) < wanted:
            children.append(subprocess.Popen(["sleep", "60"]))
    for child in children:
        child.kill()
        child.wait()
    return len(children)


def opened(wanted: int) -> int:
    """Return how many of `wanted` descriptors can be open at the same time; all are closed again."""
    descriptors: list[int] = []
    try:
        while len(descriptors) < wanted:
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)


def allocated(mebibytes: int) -> int:
    """Return how many MiB of memory could be filled; the process is killed if they do not fit."""
    return len(b"x" * (mebibytes * 1024**2)) // 1024**2


def dumped() -> bool:
    """Return whether the system dumps the memory of a process that crashes."""
    child = os.fork()
    if child == 0:
        os.chdir("/tmp")
        os.abort()
    return os.WCOREDUMP(os.waitpid(child, 0)[1])
