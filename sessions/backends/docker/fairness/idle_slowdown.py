"""Lets the timers of idle kernels fire late, so that gVisor's polling costs little.

Before release-20260622, gVisor's systrap tunes itself every 0.4 ms, also in an idle sandbox. That costs 1 to 3 % of a
processor per sandbox (google/gvisor#13470). With late timers, it does so 20 times a second. A kernel at rest still runs
and answers everything. Only what it does on its own after some time, such as `sleep`, comes up to 50 ms late.
"""

from __future__ import annotations

import asyncio

from sessions.backends.docker.fairness.usage_loop import Use

#: seconds without use after which a kernel rests
UNUSED = 2.0
#: processors above which an idle kernel uses so much that rest is useful
WORTHWHILE = 0.003
#: processors above which a kernel at rest computes something on its own, and seconds before it may rest again
WORKS, AWAKE = 0.01, 30.0


class IdleSlowdown:
    """Makes the timers of idle kernels late, and those of kernels that compute on their own prompt again."""

    interval = 1.0
    refused = "idle kernels cannot be put to rest: see `kernel-gateway doctor`"

    def __init__(self) -> None:
        """Begin without knowledge of kernels."""
        #: time before which a kernel does not rest, by the id of its container
        self._awake_until: dict[str, float] = {}

    async def follow(self, now: float, uses: list[Use]) -> None:
        """Decide for each kernel whether its timers may fire late."""
        self._awake_until = {kernel: until for kernel, until in self._awake_until.items() if until > now}
        for use in uses:
            if use.elapsed:
                self._decide(now, use)
            await asyncio.sleep(0)  # a change of one kernel's timers takes about a millisecond

    def _decide(self, now: float, use: Use) -> None:
        handle = use.handle
        if handle.in_use:
            handle.make_responsive()
        elif handle.timer_slack.late:
            if use.processors > WORKS:
                self._awake_until[handle.id] = now + AWAKE
                handle.make_responsive()
        elif handle.id not in self._awake_until and now >= handle.used_at + UNUSED and use.processors > WORTHWHILE:
            handle.timer_slack.make_late()
