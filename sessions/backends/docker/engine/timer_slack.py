"""Sets the timer slack of a container's threads: the time by which Linux may fire their timers too late.

A new thread inherits the timer slack of the thread that makes it.
Sources: PR_SET_TIMERSLACK(2const); proc(5), `/proc/PID/timerslack_ns`, which needs the capability CAP_SYS_NICE.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sessions.backends.docker.engine.cgroup import ControlGroup

PROC = Path("/proc")
#: nanoseconds of timer slack: Linux's default, and the value of a container that is slowed down
PROMPT = 50_000
LATE = 50_000_000


class TimerSlack:
    """The timer slack of one container."""

    def __init__(self, cgroup: ControlGroup, proc: Path = PROC) -> None:
        """Keep the arguments. Nothing is changed yet.

        Args:
            cgroup: control group of the container.
            proc: folder of the processes.
        """
        self._cgroup = cgroup
        self._proc = proc
        #: present slack. None means unknown, because an earlier gateway may have set it.
        self._slack: int | None = None

    @property
    def late(self) -> bool:
        """Whether timers may fire late."""
        return self._slack == LATE

    def make_late(self) -> None:
        """Let the container's timers fire late.

        Raises:
            OSError: when this user may not set the timer slack.
        """
        self._set(LATE)

    def make_prompt(self) -> None:
        """Let the container's timers fire in time.

        Raises:
            OSError: when this user may not set the timer slack; then it was never changed either.
        """
        self._set(PROMPT)

    def _set(self, slack: int) -> None:
        if slack == self._slack:
            return
        self._slack = slack
        done: set[int] = set()
        while new := self._cgroup.threads() - done:  # repeated, because a thread may have made another one meanwhile
            for thread in new:
                with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                    (self._proc / str(thread) / "timerslack_ns").write_text(str(slack))
            done |= new


def may_be_set(proc: Path = PROC) -> bool:
    """Return whether this user may set the timer slack of other users' threads."""
    try:
        (proc / "1" / "timerslack_ns").read_text()  # reading needs the same capability
    except OSError:
        return False
    return True
