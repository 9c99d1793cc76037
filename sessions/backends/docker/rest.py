"""Rest for kernels that nobody uses: their timers may fire late, so that gVisor's polling costs little.

gVisor's systrap tunes itself every 0.4 ms, also in a sandbox that does nothing, which costs 1 to 3 % of a processor for
each (before release-20260622, see google/gvisor#13470). At rest it does so 20 times a second. A kernel at rest goes on
running and answers everything. Only what it does on its own, when a time has passed, comes up to 50 ms late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import structlog

from sessions.backends.docker.handle import DockerHandle
from sessions.tasks import forever

log = structlog.get_logger()

#: seconds between two looks at all kernels
INTERVAL = 1.0
#: seconds without use after which a kernel rests
UNUSED = 2.0
#: processors that an idle kernel uses at least if rest is worthwhile
WORTHWHILE = 0.003
#: processors above which a kernel at rest works for itself, and seconds before it may rest again
WORKS, AWAKE = 0.01, 30.0


@dataclass(slots=True)
class _Look:
    """What the last look at one kernel found."""

    #: time, and processor time that the kernel had used, in seconds
    at: float
    seconds: float
    #: time before which the kernel does not rest
    awake_until: float


class Rest:
    """Puts kernels to rest that nobody uses, and rouses those that work for themselves."""

    def __init__(self, handles: Mapping[str, DockerHandle]) -> None:
        """Begin without knowledge of their use.

        Args:
            handles: all kernels, by the id of their container.
        """
        self._handles = handles
        self._looks: dict[str, _Look] = {}
        self._permitted = True

    async def run(self) -> NoReturn:
        """Look at them until cancelled."""

        async def round_() -> None:
            await asyncio.sleep(INTERVAL)
            if self._permitted:
                await self.look(asyncio.get_running_loop().time())

        await forever(round_)

    async def look(self, now: float) -> None:
        """Look at all kernels.

        Args:
            now: time in seconds, by the event loop's clock.
        """
        before, self._looks = self._looks, {}
        for handle in list(self._handles.values()):
            seconds = handle.cgroup.seconds()
            if seconds is not None:
                last = before.get(handle.id) or _Look(now, seconds, now)
                self._looks[handle.id] = _Look(now, seconds, last.awake_until)
                if now > last.at:
                    self._decide(handle, self._looks[handle.id], (seconds - last.seconds) / (now - last.at))
                await asyncio.sleep(0)  # to change the timers of one kernel takes about a millisecond

    def _decide(self, handle: DockerHandle, look: _Look, processors: float) -> None:
        if handle.in_use:
            handle.rouse()
        elif handle.timers.late:
            if processors > WORKS:
                look.awake_until = look.at + AWAKE
                handle.rouse()
        elif look.at >= max(look.awake_until, handle.used_at + UNUSED) and processors > WORTHWHILE:
            try:
                handle.timers.make_late()
            except OSError as error:
                self._permitted = False
                log.warning("idle kernels cannot be put to rest: see `kernel-gateway doctor`", error=str(error))
