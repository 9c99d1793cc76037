"""What waits in the gateway's memory for one kernel that does not read, and counts for the kernel's tenant.

One channel's bytes are bounded, but a tenant has many kernels. So what waits for all of them is bounded, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from sessions.kernels.backlog import Backlog

#: bytes for each kernel that count for nobody: what the gateway itself must say is no matter of the tenant's share
FREE = 64 * 1024
#: seconds between two looks at what a kernel has read since
INTERVAL = 0.25


class Unsent:
    """The bytes that wait for one kernel, on all its channels."""

    def __init__(self, backlogs: Collection[Backlog], hold: Callable[[int], bool]) -> None:
        """Begin with none.

        Args:
            backlogs: of its channels.
            hold: counts bytes more, or fewer; returns False if the tenant would then have too many.
        """
        self._backlogs = backlogs
        self._hold = hold
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, count: int) -> bool:
        """Count a message that is about to be sent; return False if the tenant would then have too many bytes."""
        return self._set(self._waiting() + count - FREE)

    def _waiting(self) -> int:
        return sum(backlog.waits(FREE // 4) for backlog in self._backlogs)

    def _set(self, count: int) -> bool:
        change = max(0, count) - self._held
        if change and not self._hold(change):
            return False
        self._held += change
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._look)
        return True

    def _look(self) -> None:
        self._timer = None
        self._set(min(self._held, self._waiting() - FREE))

    def close(self) -> None:
        """Give everything back, because the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._held:
            self._hold(-self._held)
            self._held = 0
