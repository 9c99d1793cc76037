"""Measures at intervals how much processor time each kernel has used, and tells a follower."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

import structlog

from sessions.backends.docker.container.handle import DockerHandle
from sessions.model.tasks import forever

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Use:
    """The processor time that one kernel has used between two rounds."""

    handle: DockerHandle
    #: seconds between the two rounds. 0 in the kernel's first round.
    elapsed: float
    #: average number of processors. 0 in the kernel's first round.
    processors: float


class Follower(Protocol):
    """Reacts to the measured use of kernels."""

    #: seconds between two rounds
    interval: float
    #: text for the log if this user may not change what the follower changes
    refused: str

    async def follow(self, now: float, uses: list[Use]) -> None:
        """React to the use of all kernels.

        Args:
            now: time in seconds, by the event loop's clock.
            uses: use of each kernel whose control group is visible from here.

        Raises:
            OSError: when this user may not change what has to be changed. Then there are no more rounds.
        """


class UsageLoop:
    """Measures all kernels at intervals, and tells a follower."""

    def __init__(self, handles: Mapping[str, DockerHandle], follower: Follower) -> None:
        """Begin without measurements.

        Args:
            handles: all kernels, by the id of their container.
            follower: gets the measured use.
        """
        self._handles = handles
        self._follower = follower
        self._permitted = True
        #: time of the last round, and the processor time that each kernel had used by then, in seconds
        self._last = 0.0
        self._seconds: dict[str, float] = {}

    async def run(self) -> NoReturn:
        """Make rounds until the task is cancelled."""

        async def round_() -> None:
            await asyncio.sleep(self._follower.interval)
            if self._permitted:
                await self.round(asyncio.get_running_loop().time())

        await forever(round_)

    async def round(self, now: float) -> None:
        """Make one round.

        Args:
            now: time in seconds, by the event loop's clock.
        """
        uses = await asyncio.to_thread(self._measure, list(self._handles.values()), now)
        try:
            await self._follower.follow(now, uses)
        except OSError as error:
            self._permitted = False
            log.warning(self._follower.refused, error=str(error))

    def _measure(self, handles: Iterable[DockerHandle], now: float) -> list[Use]:
        before, self._seconds = self._seconds, {}
        uses = []
        for handle in handles:
            seconds = handle.cgroup.seconds()
            if seconds is not None:
                elapsed = now - self._last if handle.id in before else 0.0
                rate = (seconds - before[handle.id]) / elapsed if elapsed else 0.0
                self._seconds[handle.id] = seconds
                uses.append(Use(handle, elapsed, rate))
        self._last = now
        return uses
