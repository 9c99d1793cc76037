"""Rest for kernels that nobody uses: their timers may fire late, so that gVisor's polling costs little.

gVisor's systrap tunes itself every 0.4 ms, also in a sandbox that does nothing, which costs 1 to 3 % of a processor for
each (before release-20260622, see google/gvisor#13470). At rest it does so 20 times a second. A kernel at rest goes on
running and answers everything. Only what it does on its own, when a time has passed, comes up to 50 ms late.
"""

from __future__ import annotations

import asyncio

from sessions.backends.docker.fairness.usage import Use

#: seconds without use after which a kernel rests
UNUSED = 2.0
#: processors that an idle kernel uses at least if rest is worthwhile
WORTHWHILE = 0.003
#: processors above which a kernel at rest works for itself, and seconds before it may rest again
WORKS, AWAKE = 0.01, 30.0


class Rest:
    """Puts kernels to rest that nobody uses, and rouses those that work for themselves."""

    interval = 1.0
    refused = "idle kernels cannot be put to rest: see `kernel-gateway doctor`"

    def __init__(self) -> None:
        """Begin without knowledge of kernels."""
        #: time before which a kernel does not rest, by the id of its container
        self._awake_until: dict[str, float] = {}

    async def follow(self, now: float, uses: list[Use]) -> None:
        """Put kernels to rest, or rouse them."""
        self._awake_until = {kernel: until for kernel, until in self._awake_until.items() if until > now}
        for use in uses:
            if use.elapsed:
                self._decide(now, use)
            await asyncio.sleep(0)  # to change the timers of one kernel takes about a millisecond

    def _decide(self, now: float, use: Use) -> None:
        handle = use.handle
        if handle.in_use:
            handle.rouse()
        elif handle.timers.late:
            if use.processors > WORKS:
                self._awake_until[handle.id] = now + AWAKE
                handle.rouse()
        elif handle.id not in self._awake_until and now >= handle.used_at + UNUSED and use.processors > WORTHWHILE:
            handle.timers.make_late()
