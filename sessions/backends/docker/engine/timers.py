"""How late the timers of a container's threads may fire.

Linux calls this the timer slack of a thread. A new thread begins with that of the thread that makes it.
Sources: PR_SET_TIMERSLACK(2const); proc(5), `/proc/PID/timerslack_ns`, which needs the capability CAP_SYS_NICE.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sessions.backends.docker.engine.cgroup import ControlGroup

PROC = Path("/proc")
#: nanoseconds: Linux's own value, and that of a container at rest
PROMPT = 50_000
LATE = 50_000_000


class Timers:
    """The timers of one container."""

    def __init__(self, cgroup: ControlGroup, proc: Path = PROC) -> None:
        """Change nothing yet.

        Args:
            cgroup: has the container's threads.
            proc: folder of the processes.
        """
        self._cgroup = cgroup
        self._proc = proc
        #: present slack; None: unknown, because an earlier gateway may have set it
        self._slack: int | None = None

    @property
    def late(self) -> bool:
        """Whether they may fire late."""
        return self._slack == LATE

    def make_late(self) -> None:
        """Let them fire late.

        Raises:
            OSError: when this user may not set that.
        """
        self._set(LATE)

    def make_prompt(self) -> None:
        """Have them fire in time.

        Raises:
            OSError: when this user may not set that, nor has made them late.
        """
        self._set(PROMPT)

    def _set(self, slack: int) -> None:
        if slack == self._slack:
            return
        self._slack = slack
        done: set[int] = set()
        while new := self._cgroup.threads() - done:  # again: one of them may have made another meanwhile
            for thread in new:
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    (self._proc / str(thread) / "timerslack_ns").write_text(str(slack))
            done |= new


def may_be_set(proc: Path = PROC) -> bool:
    """Return whether this user may set the timers of other users' threads."""
    try:
        (proc / "1" / "timerslack_ns").read_text()  # needs the same capability
    except OSError:
        return False
    return True
