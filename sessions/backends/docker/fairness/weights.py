"""Processor time for those who used little of it: the weights of the kernels' containers.

Nine kernels that compute would leave a neighbour's short cell a tenth of a processor, and the cell would wait for the
others each time that it waits for anything. So the weight of a tenant falls with the processor time that it has used in
the last seconds, and its kernels share that weight according to how many of them compute. All kernels are in one group,
whose weight is low beside the host's processes: the gateway passes on what they say. When nobody else wants the
processors, weights change nothing.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.engine.cgroup import ROOT, weigh_all
from sessions.backends.docker.fairness.usage import Use

#: a tenant that uses 1/16 of a processor has half the weight of one that uses nothing. From there on, twice the use
#: costs three quarters of the weight: a tenant that starts a kernel keeps four times the weight of one that uses twice
#: as much
HALVED_AT = 1 / 16
#: seconds after which use counts a third
MEMORY = 2.0


def weight(processors: Iterable[float]) -> float:
    """Return the weight of each kernel of a tenant; 1: its tenant has used no processor time.

    Args:
        processors: processors that each of its kernels has used of late.
    """
    used = list(processors)
    total, squares = sum(used), sum(each**2 for each in used)
    # n if n kernels compute evenly, 1 if one does all the work. Source: the inverse of Simpson's index
    computing = total**2 / squares if squares else 1.0
    return 1 / (1 + (total / HALVED_AT) ** 2) / computing


class Weights:
    """Adjusts the weights of all kernels from time to time."""

    interval = 0.5
    refused = "the weights of kernels cannot be set: many busy ones delay other tenants"

    def __init__(self, together: float, root: Path = ROOT) -> None:
        """Begin without knowledge of their use.

        Args:
            together: weight of all kernels together; 1: any process of the host, such as the gateway.
            root: folder of the control groups.
        """
        self._together = together
        self._root = root
        #: processors that each kernel has used of late, by the id of its container
        self._recent: dict[str, float] = {}

    async def follow(self, now: float, uses: list[Use]) -> None:  # noqa: ARG002 - weights need only what has elapsed
        """Set the weights of all kernels."""
        await asyncio.to_thread(self._adjust, uses)

    def _adjust(self, uses: Iterable[Use]) -> None:
        tenants: dict[str, list[DockerHandle]] = defaultdict(list)
        before, self._recent = self._recent, {}
        for use in uses:
            fades = math.exp(-use.elapsed / MEMORY)
            recent = fades * before.get(use.handle.id, 0.0) + (1 - fades) * use.processors
            self._recent[use.handle.id] = recent
            tenants[use.handle.tenant].append(use.handle)
        if not self._recent:
            return  # there are no kernels, or their groups are not visible from here
        try:
            weigh_all(self._together, self._root)
            for kernels in tenants.values():
                each = weight(self._recent[handle.id] for handle in kernels)
                for handle in kernels:
                    handle.cgroup.weigh(each)
        except OSError as error:
            if error.errno != errno.ENODEV:  # else a container has ended meanwhile
                raise
