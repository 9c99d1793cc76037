"""What runs in a sandbox's own container."""

from __future__ import annotations

from dataclasses import replace

from sessions.guest.processes import ProcessList, list_processes
from sessions.guest.tools import ToolRunner

#: process id of a container's first process, and states of processes that have ended. Source: proc_pid_stat(5)
LAUNCHER, ENDED = 1, {"Z", "X"}


async def occupants(container: ToolRunner) -> ProcessList:
    """Return what runs in a container besides its first process.

    Raises:
        SessionError: as in `list_processes`.
    """
    found = await list_processes(container)
    running = [each for each in found.processes if each.pid != LAUNCHER and each.state not in ENDED]
    return replace(found, processes=running)
