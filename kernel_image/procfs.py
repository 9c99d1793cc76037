"""Reads what the operating system shows of processes. Source: proc(5)."""

from __future__ import annotations

import os
from contextlib import suppress

from kernel_image.spelling import spelt

#: process states of the operating system that mean that a process has ended
GONE = {"Z", "X"}
_PARENT = 1


def pids() -> list[int]:
    """Return the numbers of all visible processes, in order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def status(pid: int) -> list[str]:
    """Return the status fields of a process, beginning with its state. Source: proc_pid_stat(5).

    Raises:
        OSError: when the process has ended.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def words(pid: int, file: str) -> list[str]:
    """Return the texts in a file of a process, such as `cmdline`.

    Raises:
        OSError: when the process has ended, or belongs to another user.
    """
    with open(f"/proc/{pid}/{file}", "rb") as content:
        return [word.decode("utf-8", "replace") for word in content.read(65536).split(b"\0") if word]


def link(pid: int, file: str) -> str:
    """Return what a link of a process leads to, such as `cwd`, spelt as text; empty when that cannot be read."""
    try:
        return spelt(os.readlink(f"/proc/{pid}/{file}"))
    except OSError:
        return ""


def descendants(ancestor: int) -> list[int]:
    """Return the processes that descend from a process and have not ended."""
    children: dict[int, list[int]] = {}
    running = set()
    for pid in pids():
        try:
            fields = status(pid)
        except OSError:
            continue  # ended meanwhile
        children.setdefault(int(fields[_PARENT]), []).append(pid)
        if fields[0] not in GONE:
            running.add(pid)
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return [pid for pid in found[1:] if pid in running]


def children() -> list[int]:
    """Return the processes whose parent is this one, also those that have ended and were not cleared away.

    It may miss some while others end. gVisor lists a child that is being cleared away as 0, which `kill` would take
    for the whole process group of the caller. Source: proc_pid_task_children(5).
    """
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        # The thread may have ended, and not every system lists children.
        with suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as listed:
            found += filter(None, map(int, listed.read().split()))
    return found


def is_there(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return status(pid)[0] not in GONE
    except OSError:
        return False


def booted() -> int:
    """Return the time of the machine's start in seconds since 1970, the same at every call. Source: proc_stat(5)."""
    with open("/proc/stat", encoding="ascii") as stat:
        return next(int(line.split()[1]) for line in stat if line.startswith("btime "))
