"""Which processes an interrupt reaches besides the kernel: those of the running cell, not those that earlier ones left.

In ipykernel it reaches the kernel's whole process group, and so it ends a server that an earlier cell has started.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

#: bytes of a command line that are shown
_COMMAND_MAX = 100
#: seconds by which the interrupt reaches the cell's code before its processes
_AHEAD = 0.02
#: states of processes that only wait for their parent to notice their end
_ENDED = (b"Z", b"X")


class Children:
    """The kernel's child processes, and their own."""

    def __init__(self) -> None:
        """Begin without any."""
        #: command lines of the children that have outlived the cell that started them, by process id
        self.left: dict[int, str] = {}

    def leave(self) -> list[str]:
        """Note that a cell has ended: the children that there are now run in the background.

        Returns:
            process id and command line of each child of an earlier cell that has ended during this one.
        """
        before = self.left
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # most cells leave none, and need no more
        except ChildProcessError:
            self.left = {}
        else:
            own = os.getpid()
            with suppress(OSError):  # the session has no descriptor left; the next cell's end tries it again
                running = [pid for pid, (parent, _) in _processes().items() if parent == own]
                self.left = {pid: before.get(pid) or _command_line(pid) for pid in running}
        return [f"{pid} ({command})" for pid, command in before.items() if pid not in self.left]

    def interrupt(self) -> None:
        """Send SIGINT to the kernel, and to the processes of its group that belong to the running cell."""
        own = os.getpid()
        of_cell: list[int] = []
        with suppress(OSError):  # the session has no descriptor left; the kernel's own signal needs none
            processes = _processes()
            # Chosen before the kernel's signal: the cell may end at once, and what it started is left behind then.
            depths = {
                pid: self._depth(pid, processes, own) for pid, (_, group) in processes.items() if group == os.getpgrp()
            }
            # Parents first: a shell whose command has ended would begin the next one.
            of_cell = sorted((pid for pid, depth in depths.items() if depth), key=depths.__getitem__)
        # The code first: `Popen.wait` loses the exit code of a process that has ended when the interrupt comes, and
        # says 0 for ever.
        os.kill(own, signal.SIGINT)
        if of_cell:
            time.sleep(_AHEAD)
        for pid in of_cell:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def _depth(self, pid: int, processes: dict[int, tuple[int, int]], kernel: int) -> int:
        """Return how far below the kernel a process of the running cell is; 0: it is not of this cell."""
        above = processes.get(pid, (0, 0))[0]
        if pid in self.left:
            return 0
        if above == kernel:
            return 1
        # A process whose parent has ended is in the background, too.
        depth = self._depth(above, processes, kernel) if above > 1 else 0
        return depth and depth + 1


def _processes() -> dict[int, tuple[int, int]]:
    """Return parent and process group of each process that has not ended. Source: proc_pid_stat(5)."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as stat:
            state, parent, group, *_ = stat.read().rpartition(b")")[2].split()
            if state not in _ENDED:
                found[int(name)] = (int(parent), int(group))
    return found


def _command_line(pid: int) -> str:
    """Return the command line of a process, cut to what a person needs to recognise it."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline", "rb") as words:
        return words.read(_COMMAND_MAX).replace(b"\0", b" ").decode(errors="replace").strip()
    return ""
