"""What a kernel had done when a snapshot of it was taken: whether it is still the same can be told later."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sessions.kernels.kernel import Kernel

#: seconds after which a kernel no longer counts as the same
SAME_MAX = 30.0
#: processors that an idle kernel uses at most, and seconds of one that it takes to connect again after a snapshot
IDLE, RECONNECT = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Moment:
    """What a kernel has done so far."""

    kernel: Kernel
    #: when it was last used, and now, in seconds of the event loop's clock
    used_at: float
    now: float
    #: processor time so far in seconds; None: it is not measured
    computed: float | None

    @classmethod
    def of(cls, kernel: Kernel) -> Moment:
        """Return the present moment."""
        now = asyncio.get_running_loop().time()
        return cls(kernel, kernel.handle.used_at, now, kernel.handle.processor_seconds())

    def lasts(self, kernel: Kernel | None) -> bool:
        """Return whether the kernel is still as it was: it was not used since, and has hardly computed.

        A thread that the user's code has started may have gone on.
        """
        if kernel is not self.kernel or not kernel.alive or self.computed is None:
            return False
        present = Moment.of(kernel)
        elapsed = present.now - self.now
        if present.used_at != self.used_at or elapsed > SAME_MAX or present.computed is None:
            return False
        return present.computed - self.computed <= RECONNECT + IDLE * elapsed
