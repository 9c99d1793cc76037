"""Reads data about processes from `/proc`. Source: proc(5)."""

from __future__ import annotations

import os
from contextlib import suppress

from kernel_image.file_names import text_of

#: states of processes that have ended
GONE = {"Z", "X"}
#: where the parent's id is among the fields of `status`
PARENT = 1


def pids() -> list[int]:
    """Return the ids of all visible processes, in ascending order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def status(pid: int) -> list[str]:
    """Return the fields of a process's `stat` file, from the state on. Source: proc_pid_stat(5).

    Raises:
        OSError: when the process has ended.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def words(pid: int, file: str) -> list[str]:
    """Return the texts in a file of a process that separates them with NUL, such as `cmdline`.

    Raises:
        OSError: when the process has ended, or belongs to another user.
    """
    with open(f"/proc/{pid}/{file}", "rb") as content:
        return [word.decode("utf-8", "replace") for word in content.read(65536).split(b"\0") if word]


def program(pid: int) -> str:
    """Return the name of a process's program, at most 15 characters. gVisor does not tell the program's path.

    Raises:
        OSError: when the process has ended.
    """
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
        return comm.read().rstrip("\n")


def link(pid: int, file: str) -> str:
    """Return the target of a link of a process, such as `cwd`, or an empty text if it cannot be read.

    `text_of` converts the target to text.
    """
    try:
        return text_of(os.readlink(f"/proc/{pid}/{file}"))
    except OSError:
        return ""


def descendants(ancestor: int) -> list[int]:
    """Return the ids of a process's descendants that have not ended."""
    children: dict[int, list[int]] = {}
    running = set()
    for pid in pids():
        try:
            fields = status(pid)
        except OSError:
            continue  # ended meanwhile
        children.setdefault(int(fields[PARENT]), []).append(pid)
        if fields[0] not in GONE:
            running.add(pid)
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return [pid for pid in found[1:] if pid in running]


def children() -> list[int]:
    """Return the ids of this process's children, also of ended children that are not reaped yet.

    The list may lack some children while others end. gVisor lists a child that is being reaped as 0; such a 0 is left
    out, because `kill` would take it for the caller's whole process group. Source: proc_pid_task_children(5).
    """
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        # The thread may have ended, and not every system lists children.
        with suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as listed:
            found += filter(None, map(int, listed.read().split()))
    return found


def is_running(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return status(pid)[0] not in GONE
    except OSError:
        return False


def boot_time() -> int:
    """Return the time of the machine's start in seconds since 1970. Source: proc_stat(5)."""
    with open("/proc/stat", encoding="ascii") as stat:
        return next(int(line.split()[1]) for line in stat if line.startswith("btime "))
