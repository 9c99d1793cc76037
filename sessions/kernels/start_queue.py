"""Starts kernels, a limited number at a time in the whole gateway and of each tenant.

A start uses a processor for a second or more. A hundred starts at once would all be late, and so would the cells that
run meanwhile. In turn, each kernel is ready as soon as it can be, and the first one at once. Tenants take turns, and
none may have all of them: starts of its own that take long do not delay others. Warm kernels start last.
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
from sessions.tenants.turns import take_turn

#: seconds that a caller waits for the turn to start its kernel
WAIT_MAX = 120.0


class Starts:
    """Starts kernels and containers, each when its turn has come and the sandbox is ready."""

    def __init__(
        self,
        backend: Backend,
        readiness: Readiness,
        at_once: int,
        on_started: Callable[[float, float | None], None],
        *,
        memory: PromisedMemory | None = None,
    ) -> None:
        """Begin without starts.

        Args:
            backend: where kernels run.
            readiness: whether they can be started there.
            at_once: number of starts at a time; one tenant may have all but one of them.
            on_started: called with the seconds that the start of a container took, and those from then to the kernel's
                first answer; None: the container has no kernel.
            memory: counts the memory of all kernels; None: without a limit.
        """
        self._backend = backend
        self._readiness = readiness
        self._admission = Admission(max(1, at_once - 1), at_once)
        self._on_started = on_started
        self._memory = memory or PromisedMemory()
        #: called with the stages of each start of a kernel that is no part of another operation
        self.on_stages: Report = no_op
        #: what was started or taken over, and is not gone
        self.running: dict[KernelHandle, Launch] = {}

    @property
    def waiting(self) -> int:
        """Number of starts that wait for their turn, without those of warm kernels."""
        return self._admission.waiting - self._admission.queued(NOBODY)

    def require(self) -> None:
        """Raise an error unless kernels can be started.

        Raises:
            NotInitialized: when something is missing or does not hold.
            BackendUnavailable: when the engine does not answer.
        """
        self._readiness.require()

    async def start_kernel(self, launch: Launch, start: Callable[[Launch], Awaitable[Kernel]] | None = None) -> Kernel:
        """Start a kernel and wait for its first answer.

        Args:
            launch: what to start.
            start: starts it; None: as the backend starts kernels.

        Raises:
            NotInitialized: when the sandbox is not ready.
            StartFailed: when the kernel ended or did not answer, or had no turn in time.
            BackendUnavailable: when the engine does not answer.
            QuotaExceeded: when all kernels together would be promised too much memory.
        """
        self._readiness.require()
        with measured(Operation.START, self.on_stages), self._promise(launch):
            async with self._turn(launch.tenant):
                lap(Stage.TURN)
                self._readiness.require()  # it may have changed: then all waiting callers get the error at once
                kernel = await (start(launch) if start else Kernel.start(self._backend, launch))
            self.count(kernel.handle, kernel.launch)
        self._on_started(kernel.started_in, kernel.ready_in)
        return kernel

    async def start_container(self, launch: Launch) -> KernelHandle:
        """Start a container that holds a workspace, without a kernel.

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
        """Check that a tenant may have the memory of one kernel more.

        Raises:
            QuotaExceeded: when that is more than its part of the memory of all kernels.
        """
        self._memory.require_share(launch.tenant, launch.limits.memory)

    def hand_over(self, kernel: Kernel, tenant: str) -> None:
        """Count the memory of a warm kernel for the tenant that gets it."""
        self._memory.hand_over(_place(kernel.handle, kernel.launch), tenant)

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
        """Count a kernel or container that was started, perhaps by an earlier gateway, until it is gone.

        Args:
            handle: the kernel or container.
            launch: what it was started with.
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
        """Wait for a turn, and keep it until the context is left.

        Raises:
            StartFailed: when too many starts were ahead of this one.
        """
        try:
            await take_turn(self._admission, tenant, None if tenant == NOBODY else WAIT_MAX)
        except TimeoutError:
            raise StartFailed(
                f"too many kernels are being started: this one had no turn within {WAIT_MAX:.0f} s"
            ) from None
        try:
            yield
        finally:
            self._admission.leave(tenant)


def _place(handle: KernelHandle, launch: Launch) -> str:
    """Return what the memory of a running kernel is counted for."""
    return launch.place or handle.id
