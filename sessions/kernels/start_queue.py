"""Starts kernels in a queue, a limited number at a time for all tenants and for each tenant.

A start uses a processor for a second or more. If a hundred kernels started at the same time, all of them would be late,
and also the cells that run meanwhile. In a queue, each kernel is ready as early as possible. Tenants take turns, and no
tenant may have all starts, so its slow starts do not delay others. Warm kernels start last.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from sessions.backends.base import Backend, KernelHandle, Launch, no_op
from sessions.kernels.kernel import Kernel
from sessions.kernels.readiness import Readiness
from sessions.model.errors import StartFailed
from sessions.model.stopwatch import Operation, Report, Stage, lap, measured
from sessions.model.tasks import spawn
from sessions.tenants.admission import Admission
from sessions.tenants.memory import PromisedMemory
from sessions.tenants.shares import NOBODY
from sessions.tenants.waiting import wait_for_turn

#: seconds that a caller waits for the turn to start its kernel
WAIT_MAX = 120.0


class StartQueue:
    """Starts kernels and containers, each when its turn has come and the sandbox is ready."""

    def __init__(
        self,
        backend: Backend,
        readiness: Readiness,
        at_once: int,
        on_started: Callable[[float, float | None], None],
        *,
        memory: PromisedMemory | None = None,
        on_stages: Report = no_op,
    ) -> None:
        """Begin without starts.

        Args:
            backend: backend that runs the kernels.
            readiness: says whether kernels can be started.
            at_once: maximum starts at a time. One tenant may have all but one of them.
            on_started: called with the seconds that the start of a container took, and the seconds from then to the
                kernel's first answer, or None if the container has no kernel.
            memory: counts the memory of all kernels. None means no limit.
            on_stages: called with the stages of each kernel's start, unless it is a part of another operation.
        """
        self._backend = backend
        self._readiness = readiness
        self._admission = Admission(max(1, at_once - 1), at_once)
        self._on_started = on_started
        self._memory = memory or PromisedMemory()
        self._on_stages = on_stages
        #: kernels and containers that were started or taken over and have not ended
        self.running: dict[KernelHandle, Launch] = {}

    @property
    def waiting(self) -> int:
        """Number of starts that wait for their turn, without the starts of warm kernels."""
        return self._admission.waiting - self._admission.queued(NOBODY)

    def require(self) -> None:
        """Raise an error unless kernels can be started.

        Raises:
            NotInitialized: when a requirement is missing, or the proof has failed.
            BackendUnavailable: when the engine does not answer.
        """
        self._readiness.require()

    async def start_kernel(self, launch: Launch, start: Callable[[Launch], Awaitable[Kernel]] | None = None) -> Kernel:
        """Start a kernel and wait for its first answer.

        Args:
            launch: order to start the kernel.
            start: starts the kernel. None means the usual start of the backend.

        Raises:
            NotInitialized: when the sandbox is not ready.
            StartFailed: when the kernel ended or did not answer, or had no turn in time.
            BackendUnavailable: when the engine does not answer.
            QuotaExceeded: when all kernels together would be promised too much memory.
        """
        self._readiness.require()
        with measured(Operation.START, self._on_stages), self._promise(launch):
            async with self._turn(launch.tenant):
                lap(Stage.TURN)
                self._readiness.require()  # checked again, so that all waiting callers get a new error at once
                kernel = await (start(launch) if start else Kernel.start(self._backend, launch))
            self.count(kernel.handle, kernel.launch)
        self._on_started(kernel.started_in, kernel.ready_in)
        return kernel

    async def start_container(self, launch: Launch) -> KernelHandle:
        """Start a container with a workspace but without a kernel.

        Raises:
            SessionError: as in `start_kernel`.
        """
        self._readiness.require()
        with self._promise(launch):
            async with self._turn(launch.tenant):
                self._readiness.require()
                begun = asyncio.get_running_loop().time()
                handle = await self._backend.start(launch)
                self._on_started(asyncio.get_running_loop().time() - begun, None)
            self.count(handle, launch)
        return handle

    def require_share(self, launch: Launch) -> None:
        """Check that a tenant may have the memory of one more kernel.

        Raises:
            QuotaExceeded: when the tenant's share of the memory is too small.
        """
        self._memory.require_share(launch.tenant, launch.limits.memory)

    def hand_over(self, handle: KernelHandle, launch: Launch, tenant: str) -> None:
        """Count the memory of a warm kernel or container for the tenant that gets it.

        Args:
            handle: handle of the kernel or container.
            launch: order that it was started with.
            tenant: the tenant.
        """
        self._memory.hand_over(_place(handle, launch), tenant)

    @contextmanager
    def _promise(self, launch: Launch) -> Iterator[None]:
        """Count the memory of a kernel while it starts.

        Raises:
            QuotaExceeded: when all kernels together would be promised too much memory.
        """
        place = launch.place or uuid.uuid4().hex
        self._memory.promise(place, launch.tenant, launch.limits.memory)
        try:
            yield
        finally:
            self._memory.release(place)

    def count(self, handle: KernelHandle, launch: Launch) -> None:
        """Count a kernel or container until it has ended. An earlier gateway may have started it.

        Args:
            handle: handle of the kernel or container.
            launch: order that it was started with.
        """
        place = _place(handle, launch)
        self._memory.hold(place, launch.tenant, launch.limits.memory)
        self.running[handle] = launch
        spawn(self._release(handle, place), "memory of a kernel")

    async def _release(self, handle: KernelHandle, place: str) -> None:
        try:
            await handle.wait()
        finally:
            del self.running[handle]
            self._memory.release(place)

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and keep it inside the `with` block.

        Raises:
            StartFailed: when the turn did not come in time.
        """
        try:
            await wait_for_turn(self._admission, tenant, None if tenant == NOBODY else WAIT_MAX)
        except TimeoutError:
            raise StartFailed(
                f"too many kernels are being started: this one had no turn within {WAIT_MAX:.0f} s"
            ) from None
        try:
            yield
        finally:
            self._admission.leave(tenant)


def _place(handle: KernelHandle, launch: Launch) -> str:
    """Return the place of a running kernel in the budget of memory."""
    return launch.place or handle.id
