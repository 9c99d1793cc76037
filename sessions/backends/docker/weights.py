"""Processor time for those who used little of it: the weights of the kernels' containers.

Nine kernels that compute would leave a neighbour's short cell a tenth of a processor, and the cell would wait for the
others each time that it waits for anything. So the weight of a tenant falls with the processor time that it has used in
the last seconds, and its kernels share that weight according to how many of them compute. When nobody else wants the
processors, weights change nothing.
"""

from __future__ import annotations

import asyncio
import errno
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import structlog

from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.profile import WEIGHT
from sessions.tasks import forever

log = structlog.get_logger()

#: how much the use of one processor lowers a tenant's weight: to 1 / (1 + this)
STEEPNESS = 8.0
#: seconds after which use counts a third
MEMORY = 2.0
#: seconds between two adjustments
INTERVAL = 0.5


@dataclass(slots=True)
class _Use:
    """The use of one kernel."""

    #: time and processor time, in seconds, when it was last looked at
    at: float
    seconds: float
    #: processors used of late
    processors: float = 0.0

    def update(self, now: float, seconds: float) -> None:
        if now > self.at:
            fades = math.exp((self.at - now) / MEMORY)
            rate = (seconds - self.seconds) / (now - self.at)
            self.processors = fades * self.processors + (1 - fades) * rate
        self.at, self.seconds = now, seconds


def weight(processors: Iterable[float]) -> float:
    """Return the weight of each kernel of a tenant.

    Args:
        processors: processors that each of its kernels has used of late.
    """
    used = list(processors)
    total, squares = sum(used), sum(each**2 for each in used)
    # n if n kernels compute evenly, 1 if one does all the work. Source: the inverse of Simpson's index
    computing = total**2 / squares if squares else 1.0
    return WEIGHT / (1 + STEEPNESS * total) / computing


class Weights:
    """Adjusts the weights of all kernels from time to time."""

    def __init__(self, handles: Mapping[str, DockerHandle]) -> None:
        """Begin without knowledge of their use.

        Args:
            handles: all kernels, by the id of their container.
        """
        self._handles = handles
        self._uses: dict[str, _Use] = {}
        self._permitted = True

    async def run(self) -> NoReturn:
        """Adjust them until cancelled."""

        async def round_() -> None:
            await asyncio.sleep(INTERVAL)
            if self._permitted:
                await asyncio.to_thread(self.adjust, list(self._handles.values()), time.monotonic())

        await forever(round_)

    def adjust(self, handles: Iterable[DockerHandle], now: float) -> None:
        """Measure the use of all kernels, and set their weights.

        Args:
            handles: the kernels.
            now: time in seconds.
        """
        tenants: dict[str, list[tuple[DockerHandle, _Use]]] = defaultdict(list)
        before, self._uses = self._uses, {}
        for handle in handles:
            seconds = handle.cgroup.seconds()
            if seconds is not None:
                use = self._uses[handle.id] = before.get(handle.id) or _Use(now, seconds)
                use.update(now, seconds)
                tenants[handle.tenant].append((handle, use))
        try:
            for kernels in tenants.values():
                each = weight(use.processors for _, use in kernels)
                for handle, _ in kernels:
                    handle.cgroup.weigh(each)
        except OSError as error:
            if error.errno == errno.ENODEV:  # a container has ended meanwhile
                return
            self._permitted = False
            log.warning("the weights of kernels cannot be set: many busy ones delay other tenants", error=str(error))
