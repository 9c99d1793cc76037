"""Which processor a sandbox runs on.

A gVisor that sees only one processor does not try to gain time by spinning, and costs less than half as much while
its kernel is idle; its cells take no longer. So a kernel that is limited to one processor is bound to one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

import docker
import structlog
from docker.errors import APIError

from sessions.backends.docker.profile import DockerSettings
from sessions.models import Limits

log = structlog.get_logger()


class Processors:
    """The engine's processors."""

    def __init__(self) -> None:
        #: 0: kernels are bound to none
        self.count = 0
        #: where the search for the next begins, so that kernels which start at the same time are spread too
        self._turn = 0

    def learn(self, api: docker.APIClient, settings: DockerSettings) -> None:
        """Find out how many there are, and that the engine lets a container be bound to them.

        Raises:
            APIError: it refuses for another reason than that it does not know one of them.
        """
        count = int(api.info()["NCPU"])
        name = f"kernel-gateway-{uuid.uuid4().hex}"
        every = api.create_host_config(cpuset_cpus=f"0-{count - 1}")
        try:
            api.create_container(settings.image, name=name, labels=settings.labels, host_config=every)
        except APIError as error:
            if "CPUs" not in str(error.explanation):
                raise
            # An engine that was itself given some of the machine's processors counts from elsewhere.
            log.warning("kernels are bound to no processor: idle ones cost more", reason=str(error.explanation)[:200])
            self.count = 0
            return
        api.remove_container(name, force=True)
        self.count = count

    def choose(self, limits: Limits, bound: Iterable[int | None]) -> int | None:
        """The processor for the next kernel.

        Args:
            limits: of that kernel.
            bound: the processor of each kernel that there is.

        Returns:
            the one with the fewest; None for a kernel that may use more than one at a time.
        """
        if limits.cpus > 1 or not self.count:
            return None
        kernels = Counter(bound)
        self._turn = (self._turn + 1) % self.count
        return min(range(self.count), key=lambda each: (kernels[each], (each - self._turn) % self.count))
