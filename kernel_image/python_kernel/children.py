"""Sends interrupts to the kernel and to the processes of the running cell, but not to processes of earlier cells.

ipykernel sends an interrupt to the kernel's whole process group, so it ends a server that an earlier cell has started.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

#: maximum bytes of a command line in a message
_COMMAND_MAX = 100
#: seconds between the interrupt of the cell's code and that of its processes
_AHEAD = 0.02
#: states of ended processes
_ENDED = (b"Z", b"X")


class Children:
    """The kernel's child processes and their descendants."""

    def __init__(self) -> None:
        """Start without child processes."""
        #: command lines of children that still run after the end of their cell, by process id
        self.left: dict[int, str] = {}
        #: number of interrupts that were sent. The system makes one signal of two that come at the same time.
        self.interrupts = 0

    def leave(self) -> list[str]:
        """Record the current children at the end of a cell: from now on they are children of an earlier cell.

        Returns:
            the process id and the command line of each child of an earlier cell that has ended during this cell.
        """
        before = self.left
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # most cells leave no children
        except ChildProcessError:
            self.left = {}
        else:
            own = os.getpid()
            with suppress(OSError):  # no file descriptor is left; the end of the next cell tries again
                running = [pid for pid, (parent, _) in _processes().items() if parent == own]
                self.left = {pid: before.get(pid) or _command_line(pid) for pid in running}
        return [f"{pid} ({command})" for pid, command in before.items() if pid not in self.left]

    def interrupt(self) -> None:
        """Send SIGINT to the kernel, and to the processes in its group that the running cell has started."""
        own = os.getpid()
        of_cell: list[int] = []
        with suppress(OSError):  # no file descriptor is left; the kernel's own signal needs none
            processes = _processes()
            # The processes are chosen before the kernel's signal: the cell may end immediately after the signal, and
            # then its processes count as those of an earlier cell.
            depths = {
                pid: self._depth(pid, processes, own) for pid, (_, group) in processes.items() if group == os.getpgrp()
            }
            # Parents get the signal first: a shell whose command has ended would start its next command.
            of_cell = sorted((pid for pid, depth in depths.items() if depth), key=depths.__getitem__)
        self.interrupts += 1
        # The cell's code gets the signal before its processes: if the process of a `Popen.wait` had ended before the
        # interrupt, `wait` would lose the exit code and report 0.
        os.kill(own, signal.SIGINT)
        if of_cell:
            time.sleep(_AHEAD)
        for pid in of_cell:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def _depth(self, pid: int, processes: dict[int, tuple[int, int]], kernel: int) -> int:
        """Return a process's number of generations below the kernel, or 0 if the running cell has not started it."""
        above = processes.get(pid, (0, 0))[0]
        if pid in self.left:
            return 0
        if above == kernel:
            return 1
        # A process whose parent has ended also counts as a background process.
        depth = self._depth(above, processes, kernel) if above > 1 else 0
        return depth and depth + 1


def _processes() -> dict[int, tuple[int, int]]:
    """Return the parent and the process group of each running process, by process id. Source: proc_pid_stat(5)."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as stat:
            state, parent, group, *_ = stat.read().rpartition(b")")[2].split()
            if state not in _ENDED:
                found[int(name)] = (int(parent), int(group))
    return found


def _command_line(pid: int) -> str:
    """Return the beginning of a process's command line, so that a person can recognise the process."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline", "rb") as words:
        return words.read(_COMMAND_MAX).replace(b"\0", b" ").decode(errors="replace").strip()
    return ""
