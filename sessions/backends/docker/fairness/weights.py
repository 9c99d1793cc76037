"""Gives processor time first to tenants that have used little of it, by the weights of the kernels' containers.

Without weights, nine busy kernels would leave a tenth of a processor to another tenant's short cell, which would also
have to wait for them after each wait of its own. So a tenant's weight falls with the processor time that it has used in
the last seconds, and its busy kernels share this weight. All kernels are in one group, whose weight is low compared to
the host's processes, because the gateway must pass on what the kernels send. While some processors are free, weights
have no effect.

A weight decides only how much of a processor a kernel gets. A short cell waits dozens of times, and each time until the
kernel that computes has had its turn. So the tenant that uses nearly half of all processors gives way at once.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sessions.backends.docker.engine.cgroup import ROOT, weigh_all
from sessions.backends.docker.fairness.usage_loop import Use

#: a tenant that uses 1/16 of a processor has half the weight of one that uses nothing. From there on, twice the use
#: costs three quarters of the weight: a tenant that starts a kernel keeps four times the weight of one that uses twice
#: as much
HALVED_AT = 1 / 16
#: seconds after which a use counts only about a third
MEMORY = 2.0
#: processors of this machine
PROCESSORS = os.cpu_count() or 1
#: A tenant that has used more than the first part of all processors, in the last round or on average, always gives way,
#: until it uses less than the second part in both. At most one tenant can do so at a time. A kernel has one processor
#: at most: on a machine with two, a single one that computes is enough.
HEAVY, LIGHT = 0.4, 0.2


def weight(processors: Iterable[float]) -> float:
    """Return the weight of each kernel of a tenant. It is nearly 1 if the tenant has used hardly any processor time.

    Args:
        processors: processors that each kernel of the tenant has used in the last seconds.
    """
    used = list(processors)
    total, squares = sum(used), sum(each**2 for each in used)
    # This is n if n kernels are equally busy, and 1 if only one is busy. Source: the inverse of Simpson's index
    computing = total**2 / squares if squares else 1.0
    return 1 / (1 + (total / HALVED_AT) ** 2) / computing


class Weights:
    """Adjusts the weights of all kernels at intervals."""

    interval = 0.25
    refused = "the weights of kernels cannot be set: many busy ones delay other tenants"

    def __init__(self, together: float, root: Path = ROOT) -> None:
        """Begin without measurements.

        Args:
            together: weight of all kernels together. A process of the host, such as the gateway, has 1.
            root: folder of the control groups.
        """
        self._together = together
        self._root = root
        #: processors that each kernel has used in the last seconds, by the id of its container
        self._recent: dict[str, float] = {}
        #: the tenant that always gives way
        self._heavy: str | None = None

    async def follow(self, now: float, uses: list[Use]) -> None:  # noqa: ARG002 - weights need only what has elapsed
        """Set the weights of all kernels."""
        await asyncio.to_thread(self._adjust, uses)

    def _adjust(self, uses: Iterable[Use]) -> None:
        tenants: dict[str, list[Use]] = defaultdict(list)
        before, self._recent = self._recent, {}
        for use in uses:
            fades = math.exp(-use.elapsed / MEMORY)
            recent = fades * before.get(use.handle.id, 0.0) + (1 - fades) * use.processors
            self._recent[use.handle.id] = recent
            tenants[use.handle.tenant].append(use)
        if not self._recent:
            return  # there are no kernels, or their control groups are not visible from here
        try:
            weigh_all(self._together, self._root)
            self._heavy = self._find_heavy(tenants)
            for tenant, kernels in tenants.items():
                each = weight(self._recent[use.handle.id] for use in kernels)
                for use in kernels:
                    heavy = tenant == self._heavy
                    gives_way = use.handle.cgroup.give_way(always=heavy)
                    if not (heavy and gives_way):
                        use.handle.cgroup.weigh(each)
        except OSError as error:
            if error.errno != errno.ENODEV:  # ENODEV means that a container has ended meanwhile
                raise

    def _find_heavy(self, tenants: Mapping[str, Sequence[Use]]) -> str | None:
        """Return the tenant that always gives way. None means that nobody has used so much."""
        used = {
            tenant: sum(max(self._recent[use.handle.id], use.processors) for use in kernels) / PROCESSORS
            for tenant, kernels in tenants.items()
        }
        if self._heavy is not None and used.get(self._heavy, 0.0) >= LIGHT:
            return self._heavy
        return next((tenant for tenant, part in used.items() if part > HEAVY), None)
