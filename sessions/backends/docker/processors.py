"""Choice of the processor that a container runs on.

When gVisor sees only one processor it does not spin, and an idle kernel costs less than half as much; its cells take
no longer. Therefore a kernel that is limited to one processor is bound to one.
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
    """The processors of the engine's machine."""

    def __init__(self) -> None:
        #: number of processors; 0: kernels are not bound
        self.count = 0
        #: number of the processor where the next search begins, so that kernels which start together are spread
        self._turn = 0

    def learn(self, api: docker.APIClient, settings: DockerSettings) -> None:
        """Find out the number of processors, and whether the engine can bind a container to each of them.

        Raises:
            APIError: when the engine refuses for another reason than an unknown processor.
        """
        count = int(api.info()["NCPU"])
        name = f"kernel-gateway-{uuid.uuid4().hex}"
        every = api.create_host_config(cpuset_cpus=f"0-{count - 1}")
        try:
            api.create_container(settings.image, name=name, labels=settings.labels, host_config=every)
        except APIError as error:
            if "CPUs" not in str(error.explanation):
                raise
            # An engine that may use only some of the machine's processors does not number them from 0.
            log.warning("kernels are not bound to processors: idle ones cost more", reason=str(error.explanation)[:200])
            self.count = 0
            return
        api.remove_container(name, force=True)
        self.count = count

    def choose(self, limits: Limits, bound: Iterable[int | None]) -> int | None:
        """Choose the processor for the next kernel.

        Args:
            limits: limits of that kernel.
            bound: processor of each existing kernel.

        Returns:
            number of the processor with the fewest kernels; None for a kernel that may use more than one at a time.
        """
        if limits.cpus > 1 or not self.count:
            return None
        kernels = Counter(bound)
        self._turn = (self._turn + 1) % self.count
        return min(range(self.count), key=lambda each: (kernels[each], (each - self._turn) % self.count))
