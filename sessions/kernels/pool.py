"""The warm pool: kernels that are started ahead of need. Each is leased to one session and never taken back.

Warm kernels have the properties that nearly all sessions ask for: default limits, and no workspace of an earlier
kernel. A lease gives the session's environment and directory to the kernel, in one round trip, which also shows that
the kernel answers. All other kernels are started on demand.

Sandboxes have warm kernels of their own, see `warm_sandbox.py`. A new sandbox takes the container and the workspace of
a warm sandbox at once. The kernel stays in the pool, *reserved* for the first session on this workspace: it counts for
no tenant, gives way like all warm kernels, and is ended if no session asks for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn, TypeVar

import structlog

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.kernels.kernel import Kernel
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import QUIET, PoolObserver, PoolSettings, Stock, Waiting
from sessions.kernels.warm_sandbox import WarmSandbox
from sessions.model.errors import QuotaExceeded, SessionClosed, SessionError, ShuttingDown
from sessions.model.kernelspecs import NO_KERNEL, KernelSpec
from sessions.model.tasks import forever, log_failure, shielded, spawn
from sessions.tenants.memory import IN_ALL
from sessions.tenants.shares import NOBODY

log = structlog.get_logger()
T = TypeVar("T")

#: name of the warm sandboxes in metrics, where warm kernels have the name of their language
SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A kernel that waits for the first session of a sandbox."""

    kernel: Kernel
    #: time in seconds since which it waits for this sandbox
    since: float


class Pool:
    """The warm kernels of each language in use, and the warm sandboxes."""

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
        self.pauses = backend.pauses
        self._starts = starts
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._warm: dict[str, Stock[Kernel]] = {}
        #: the warm sandboxes. None means that none are wanted.
        self._sandboxes: Stock[WarmSandbox] | None = None
        #: the kernels that wait for the first session of a sandbox, by the sandbox's workspace; oldest first
        self._reserved: dict[str, Reserved] = {}
        #: kernels of warm sandboxes whose container is being started
        self._half: set[KernelHandle] = set()
        self._refilling: dict[str, asyncio.Task[None]] = {}
        self._discarding: set[asyncio.Task[None]] = set()
        #: workspaces that must be deleted
        self._unwanted: set[str] = set()
        self._closed = False

    def depth(self) -> int:
        """Return the number of warm kernels, those of warm sandboxes included."""
        return sum(map(len, self._stocks()))

    def warm_kernels(self) -> list[Kernel]:
        """Return the warm kernels of all languages, without those of sandboxes."""
        return [kernel for warm in self._warm.values() for kernel in warm]

    def handles(self) -> set[KernelHandle]:
        """Return all containers and processes that belong to the pool."""
        kernels = [*self.warm_kernels(), *(reserved.kernel for reserved in self._reserved.values())]
        sandboxes = [handle for sandbox in self._sandboxes or () for handle in (sandbox.handle, sandbox.container)]
        return {*(kernel.handle for kernel in kernels), *sandboxes, *self._half}

    def _stocks(self) -> list[Stock[Waiting]]:
        return [*self._warm.values(), *([self._sandboxes] if self._sandboxes is not None else [])]

    # -- keeping kernels warm -------------------------------------------------------------------------------

    def keep_warm(self, kernelspec: KernelSpec) -> None:
        """Start the warm kernels that a language lacks, in the background, unless a start has just failed."""
        self._keep(self._warm_of(kernelspec))

    def keep_sandboxes_warm(self, kernelspec: KernelSpec) -> None:
        """Keep sandboxes warm from now on, if some are wanted and files outlive their containers.

        Args:
            kernelspec: kernelspec of their kernels.
        """
        if self._sandboxes is None and self._settings.sandboxes and self.keeps_files:
            wanted = replace(self._settings, size=self._settings.sandboxes)
            start = partial(self._start_sandbox, kernelspec)
            self._sandboxes = Stock(SANDBOX, kernelspec, wanted, self._clock(), start)
            self._keep(self._sandboxes)

    def _keep(self, warm: Stock[Waiting]) -> None:
        refilling = self._refilling.get(warm.name)
        if not self._closed and (refilling is None or refilling.done()) and warm.may_start(self._clock()):
            self._refilling[warm.name] = spawn(self._refill(warm), f"warm {warm.name}")

    def _warm_of(self, kernelspec: KernelSpec) -> Stock[Kernel]:
        if kernelspec.name not in self._warm:
            start = partial(self._starts.start_kernel, Launch(kernelspec, self._settings.limits))
            self._warm[kernelspec.name] = Stock(kernelspec.name, kernelspec, self._settings, self._clock(), start)
        return self._warm[kernelspec.name]

    async def _refill(self, warm: Stock[Waiting]) -> None:
        name = warm.name
        await asyncio.sleep(self._settings.refill_delay)
        await warm.preload()
        while warm.lacking:
            begun = self._clock()
            try:
                kernel = await warm.grow()
            except ShuttingDown:
                return  # the gateway ends and needs no warm kernels
            except SessionError as error:
                log.warning("no warm kernel", language=name, code=error.code, reason=error.message)
                warm.failed(self._clock())
                return  # `tend` and `acquire` try again after the pause; `acquire` also after a successful start
            self._observer.refilled(name, self._clock() - begun)
            spawn(self._watch_exit(warm, kernel), f"watch a warm {name} kernel")
            self._report_depth(warm)
            await warm.preload()

    async def _start_sandbox(self, kernelspec: KernelSpec) -> WarmSandbox:
        """Start a container and a kernel on a new workspace. If one of them fails, nothing is left."""
        launch = Launch(kernelspec, self._settings.limits, workspace=uuid.uuid4().hex, shared=True)
        kernel: Kernel | None = None
        try:
            kernel = await self._starts.start_kernel(launch)
            self._half.add(kernel.handle)
            container = await self._starts.start_container(replace(launch, kernelspec=NO_KERNEL))
        except BaseException:
            await shielded(spawn(self._end_start(kernel, str(launch.workspace)), "end a warm sandbox"))
            raise
        finally:
            if kernel is not None:
                self._half.discard(kernel.handle)
        return WarmSandbox(container, kernel)

    async def _watch_exit(self, warm: Stock[Waiting], kernel: Waiting) -> None:
        """Replace a warm kernel that ends on its own: the first one at once, the next ones only after a pause."""
        cause = await kernel.wait()
        if not warm.drop(kernel):
            return
        self._evict(warm, kernel, cause.message)
        now = self._clock()
        if now >= warm.paused_until:
            self._keep(warm)
        warm.pause(now)

    def tend(self) -> None:
        """End kernels that were not needed for a while, and retry failed starts. Called at intervals."""
        for warm in self._stocks():
            for kernel in warm.shrink(self._clock()):
                self._discard(kernel)
            self._report_depth(warm)
            if warm.lacking and self._clock() >= warm.paused_until:
                self._keep(warm)
        for workspace, reserved in list(self._reserved.items()):
            if self._clock() - reserved.since >= QUIET:
                self._discard(self._reserved.pop(workspace).kernel, files=False)

    async def run(self, interval: float) -> NoReturn:
        """Tend the pool every `interval` seconds until cancelled, and retry failed deletions of workspaces."""

        async def look() -> None:
            await asyncio.sleep(interval)
            self.tend()
            await self._delete_unwanted()

        await forever(look, pause=interval)

    def _report_depth(self, warm: Stock[Waiting]) -> None:
        self._observer.depth_changed(warm.name, len(warm), warm.target)

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
        if (kernel := await self._lease_reserved(launch)) is not None:
            return kernel
        if not self._fits(launch, Launch(launch.kernelspec, self._settings.limits)):
            return await self.with_room(partial(self._starts.start_kernel, launch))
        self._starts.require_share(launch)
        warm = self._warm_of(launch.kernelspec)
        while (kernel := warm.take()) is not None:
            self._starts.hand_over(kernel.handle, kernel.launch, launch.tenant)
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
                if self._reserved:  # before the others: they would serve one sandbox only
                    await self._end(self._reserved.pop(next(iter(self._reserved))).kernel, files=False)
                    continue
                warm = max(self._stocks(), key=len, default=None)
                kernel = warm.give_up() if warm is not None else None
                if warm is None or kernel is None:
                    raise
                warm.pause(self._clock())  # otherwise the pool would take the memory again
                self._report_depth(warm)
                await self._end(kernel)

    def _fits(self, launch: Launch, offered: Launch) -> bool:
        """Return whether a warm kernel fits, because a lease can change all that differs between the two launches."""
        # The limit of output concerns only the gateway, not the kernel.
        limits = replace(launch.limits, output=self._settings.limits.output)
        return (
            replace(launch, tenant=NOBODY, session="", env={}, cwd="", limits=limits) == offered
            and launch.limits.output <= self._settings.limits.output
            and launch.kernelspec.accepts(launch.env, launch.cwd)
        )

    async def _hand_out(self, kernel: Kernel, launch: Launch, *, files: bool = True) -> bool:
        try:
            return await kernel.lease(launch)
        except BaseException:
            # The kernel may already have the session's environment, so no other may get it.
            self._discard(kernel, files=files)
            raise

    def take_sandbox(self, launch: Launch) -> WarmSandbox | None:
        """Take a warm sandbox for a new sandbox, if one fits. Its kernel stays here, for the first session that fits.

        Args:
            launch: order to start the new sandbox's own container, without a workspace.

        Raises:
            NotInitialized: when kernels cannot be started now.
            BackendUnavailable: when the engine does not answer.
            QuotaExceeded: when the tenant would be promised too much memory.
        """
        warm, offered = self._sandboxes, Launch(NO_KERNEL, self._settings.limits, shared=True)
        if warm is None or not self._fits(replace(launch, env={}), offered):  # each tool gets its own `env`
            return None
        self._starts.require()
        self._starts.require_share(launch)
        while (taken := warm.take()) is not None and not taken.alive:
            self._evict(warm, taken, "it ended just now")
        if taken is not None:
            self._starts.hand_over(taken.container, replace(offered, workspace=taken.workspace), launch.tenant)
            self._reserved[taken.workspace] = Reserved(taken.kernel, self._clock())
            self._report_depth(warm)
        else:
            warm.missed()
        self._observer.leased(warm.name, warm=taken is not None)
        self._keep(warm)
        return taken

    async def _lease_reserved(self, launch: Launch) -> Kernel | None:
        """Return the kernel that is reserved for sessions on this workspace, if it fits and answers."""
        workspace = launch.workspace or ""
        reserved = self._reserved.get(workspace)
        if reserved is None or not self._fits(launch, reserved.kernel.launch):
            return None
        self._starts.require_share(launch)
        kernel = self._reserved.pop(workspace).kernel
        self._starts.hand_over(kernel.handle, kernel.launch, launch.tenant)
        if await self._hand_out(kernel, launch, files=False):
            return kernel
        self._lost(SANDBOX, kernel, "it did not answer when it was leased")
        self._discard(kernel, files=False)
        return None

    async def start_container(self, launch: Launch) -> KernelHandle:
        """Start a container without a kernel, for tools and files.

        Raises:
            NotInitialized: when the sandbox is not ready.
            StartFailed: when the container could not be started, or had no turn in time.
            BackendUnavailable: when the engine does not answer.
        """
        return await self.with_room(partial(self._starts.start_container, launch))

    # -- ending kernels -------------------------------------------------------------------------------------

    def _evict(self, warm: Stock[Waiting], kernel: Waiting, reason: str) -> None:
        self._lost(warm.name, kernel, reason)
        self._report_depth(warm)
        self._discard(kernel)

    def _lost(self, name: str, kernel: Waiting, reason: str) -> None:
        log.warning("a warm kernel is lost", language=name, kernel=kernel.handle.id[:12], reason=reason)
        self._observer.evicted(name)

    def _discard(self, kernel: Waiting, *, files: bool = True) -> None:
        task = spawn(self._end(kernel, files=files), "end a kernel that waited")
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def _end(self, kernel: Waiting, *, files: bool = True) -> None:
        """End a kernel, and delete its workspace unless the workspace belongs to a sandbox (`files` is False)."""
        await kernel.kill(SessionClosed())
        if files and kernel.launch.workspace is not None:
            await self.delete_workspace(kernel.launch.workspace)

    async def _end_start(self, started: Kernel | None, workspace: str) -> None:
        if started is not None:
            await started.kill(SessionClosed())
        await self.delete_workspace(workspace)

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a workspace, and end the kernel that is reserved for it. If this fails, it is retried at intervals."""
        self._unwanted.add(workspace)
        if (reserved := self._reserved.pop(workspace, None)) is not None:
            await reserved.kernel.kill(SessionClosed())
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
        for warm in self._stocks():
            for kernel in warm.clear():
                self._discard(kernel)
        while self._reserved:
            self._discard(self._reserved.popitem()[1].kernel, files=False)
        await asyncio.gather(*self._discarding, return_exceptions=True)
        await self._delete_unwanted()
