"""The warm pool: kernels that are started ahead of need. Each is leased to one session and never taken back.

Warm kernels have the properties that nearly all sessions ask for: default limits, and no workspace of an earlier
kernel. A lease gives the session's environment and directory to the kernel, in one round trip, which also shows that
the kernel answers. All other kernels are started on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn, TypeVar

import structlog

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.kernels.kernel import Kernel
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolObserver, PoolSettings, WarmKernels
from sessions.model.errors import QuotaExceeded, SessionClosed, SessionError, ShuttingDown
from sessions.model.kernelspecs import KernelSpec
from sessions.model.tasks import forever, log_failure, spawn
from sessions.tenants.memory import IN_ALL
from sessions.tenants.shares import NOBODY

log = structlog.get_logger()
T = TypeVar("T")


class Pool:
    """The warm kernels of each language in use."""

    def __init__(
        self,
        backend: Backend,
        starts: StartQueue,
        settings: PoolSettings,
        clock: Callable[[], float],
        *,
        observer: PoolObserver,
    ) -> None:
        """Begin empty.

        Args:
            backend: backend that runs the kernels.
            starts: queue of starts.
            settings: number and limits of warm kernels.
            clock: returns the time in seconds.
            observer: gets the pool's events.
        """
        self._backend = backend
        self.keeps_files = backend.keeps_files
        self._starts = starts
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._warm: dict[str, WarmKernels] = {}
        self._refilling: dict[str, asyncio.Task[None]] = {}
        self._discarding: set[asyncio.Task[None]] = set()
        #: workspaces that must be deleted
        self._unwanted: set[str] = set()
        self._closed = False

    def depth(self) -> int:
        """Return the number of warm kernels."""
        return sum(map(len, self._warm.values()))

    def warm_kernels(self) -> list[Kernel]:
        """Return the warm kernels of all languages."""
        return [kernel for warm in self._warm.values() for kernel in warm]

    # -- keeping kernels warm -------------------------------------------------------------------------------

    def keep_warm(self, kernelspec: KernelSpec) -> None:
        """Start the warm kernels that a language lacks, in the background, unless a start has just failed."""
        refilling, warm = self._refilling.get(kernelspec.name), self._warm_of(kernelspec)
        if not self._closed and (refilling is None or refilling.done()) and warm.may_start(self._clock()):
            self._refilling[kernelspec.name] = spawn(self._refill(warm), f"warm {kernelspec.name}")

    def _warm_of(self, kernelspec: KernelSpec) -> WarmKernels:
        if kernelspec.name not in self._warm:
            self._warm[kernelspec.name] = WarmKernels(kernelspec, self._settings, self._clock())
        return self._warm[kernelspec.name]

    async def _refill(self, warm: WarmKernels) -> None:
        name = warm.kernelspec.name
        await asyncio.sleep(self._settings.refill_delay)
        await warm.preload()
        while warm.lacking:
            begun = self._clock()
            try:
                kernel = await self._starts.start_kernel(Launch(warm.kernelspec, self._settings.limits))
            except ShuttingDown:
                return  # the gateway ends and needs no warm kernels
            except SessionError as error:
                log.warning("no warm kernel", language=name, code=error.code, reason=error.message)
                warm.failed(self._clock())
                return  # `tend` and `acquire` try again after the pause; `acquire` also after a successful start
            self._observer.refilled(name, self._clock() - begun)
            warm.put(kernel)
            spawn(self._watch_exit(warm, kernel), f"watch a warm {name} kernel")
            self._report_depth(warm)
            await warm.preload()

    async def _watch_exit(self, warm: WarmKernels, kernel: Kernel) -> None:
        """Replace a warm kernel that ends on its own: the first one at once, the next ones only after a pause."""
        cause = await kernel.wait()
        if not warm.drop(kernel):
            return
        self._evict(warm, kernel, cause.message)
        now = self._clock()
        if now >= warm.paused_until:
            self.keep_warm(warm.kernelspec)
        warm.pause(now)

    def tend(self) -> None:
        """End kernels that were not needed for a while, and retry failed starts. Called at intervals."""
        for warm in self._warm.values():
            for kernel in warm.shrink(self._clock()):
                self._discard(kernel)
            self._report_depth(warm)
            if warm.lacking and self._clock() >= warm.paused_until:
                self.keep_warm(warm.kernelspec)

    async def run(self, interval: float) -> NoReturn:
        """Tend the pool every `interval` seconds until cancelled, and retry failed deletions of workspaces."""

        async def look() -> None:
            await asyncio.sleep(interval)
            self.tend()
            await self._delete_unwanted()

        await forever(look, pause=interval)

    def _report_depth(self, warm: WarmKernels) -> None:
        self._observer.depth_changed(warm.kernelspec.name, len(warm), warm.target)

    # -- leasing kernels ------------------------------------------------------------------------------------

    async def acquire(self, launch: Launch) -> Kernel:
        """Return a kernel for one session: a warm kernel if one fits, or else a new one.

        Raises:
            NotInitialized: when the sandbox is not ready.
            InvalidRequest: when the image lacks the kernel's language.
            StartFailed: when the kernel ended or did not answer, or had no turn in time.
            BackendUnavailable: when the engine does not answer.
            QuotaExceeded: when the tenant's kernels, or those of all tenants, would be promised too much memory.
        """
        self._starts.require()
        if self._backend.inventory is not None and not launch.image:  # another image has other languages
            self._backend.inventory.require(launch.kernelspec)
        if not self._fits(launch):
            return await self.with_room(partial(self._starts.start_kernel, launch))
        self._starts.require_share(launch)
        warm = self._warm_of(launch.kernelspec)
        while (kernel := warm.take()) is not None:
            self._starts.hand_over(kernel, launch.tenant)
            self._report_depth(warm)
            self.keep_warm(launch.kernelspec)
            if await self._hand_out(kernel, launch):
                self._observer.leased(launch.kernelspec.name, warm=True)
                return kernel
            self._evict(warm, kernel, "it did not answer when it was leased")
        warm.missed()
        self._observer.leased(launch.kernelspec.name, warm=False)
        try:
            kernel = await self.with_room(partial(self._starts.start_kernel, launch))
            warm.succeeded()
            return kernel
        finally:
            self.keep_warm(launch.kernelspec)

    async def with_room(self, start: Callable[[], Awaitable[T]]) -> T:
        """Run a start for a session. While there is no memory for it, a warm kernel is ended, and it is run again.

        Raises:
            QuotaExceeded: when there is no warm kernel left to end.
            SessionError: when the start fails for another reason.
        """
        while True:
            try:
                return await start()
            except QuotaExceeded as refused:
                if refused.details.get("limit") != IN_ALL:  # warm kernels do not count for a tenant's share
                    raise
                warm = max(self._warm.values(), key=len, default=None)
                kernel = warm.give_up() if warm is not None else None
                if warm is None or kernel is None:
                    raise
                warm.pause(self._clock())  # otherwise the pool would take the memory again
                self._report_depth(warm)
                await self._end(kernel)

    def _fits(self, launch: Launch) -> bool:
        """Return whether a warm kernel fits, because a lease can change all that differs from this launch."""
        # The limit of output concerns only the gateway, not the kernel.
        limits = replace(launch.limits, output=self._settings.limits.output)
        return (
            replace(launch, tenant=NOBODY, session="", env={}, cwd="", limits=limits)
            == Launch(launch.kernelspec, self._settings.limits)
            and launch.limits.output <= self._settings.limits.output
            and launch.kernelspec.accepts(launch.env, launch.cwd)
        )

    async def _hand_out(self, kernel: Kernel, launch: Launch) -> bool:
        try:
            return await kernel.lease(launch)
        except BaseException:
            self._discard(kernel)  # the kernel may already have the session's environment, so no other may get it
            raise

    async def start_container(self, launch: Launch) -> KernelHandle:
        """Start a container without a kernel, for tools and files.

        Raises:
            NotInitialized: when the sandbox is not ready.
            StartFailed: when the container could not be started, or had no turn in time.
            BackendUnavailable: when the engine does not answer.
        """
        return await self.with_room(partial(self._starts.start_container, launch))

    # -- ending kernels -------------------------------------------------------------------------------------

    def _evict(self, warm: WarmKernels, kernel: Kernel, reason: str) -> None:
        log.warning("a warm kernel is lost", language=warm.kernelspec.name, kernel=kernel.handle.id[:12], reason=reason)
        self._observer.evicted(warm.kernelspec.name)
        self._report_depth(warm)
        self._discard(kernel)

    def _discard(self, kernel: Kernel) -> None:
        task = spawn(self._end(kernel), "end a kernel that waited")
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def _end(self, kernel: Kernel) -> None:
        await kernel.kill(SessionClosed())
        if kernel.launch.workspace is not None:
            await self.delete_workspace(kernel.launch.workspace)

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a workspace. If this fails, it is retried at intervals."""
        self._unwanted.add(workspace)
        with log_failure(f"removal of workspace {workspace}"):
            await self._backend.delete_workspace(workspace)
            self._unwanted.discard(workspace)

    async def _delete_unwanted(self) -> None:
        for workspace in list(self._unwanted):
            await self.delete_workspace(workspace)

    async def close(self) -> None:
        """End all warm kernels, and start no more. The next gateway deletes the workspaces that cannot be deleted."""
        self._closed = True
        refilling = list(self._refilling.values())
        for task in refilling:
            task.cancel()  # this also ends a kernel that is being started
        await asyncio.gather(*refilling, return_exceptions=True)
        for warm in self._warm.values():
            for kernel in warm.clear():
                self._discard(kernel)
        await asyncio.gather(*self._discarding, return_exceptions=True)
        await self._delete_unwanted()
