"""Kernels started ahead of need: handed out once, never taken back.

Kept warm is what nearly everybody asks for: default limits, no workspace of an earlier kernel. What a session wants of
its own beyond that, its environment and directory, a kernel takes when it is handed out, in the one round trip in
which it also shows that it is well. Anything else is started when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

import structlog

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.errors import SessionClosed, SessionError
from sessions.kernel import Kernel
from sessions.kernelspecs import KernelSpec
from sessions.models import Limits
from sessions.shelf import Shelf
from sessions.starts import Starts
from sessions.tasks import forever, going_on, spawn

log = structlog.get_logger()


class Observer(Protocol):
    """Told how the pool does. Times in seconds."""

    def shelved(self, language: str, kernels: int, target: int) -> None:
        """So many kernels wait, of so many that ought to."""

    def leased(self, language: str, *, warm: bool) -> None:
        """A session that could have had a warm kernel got one, or found none."""

    def evicted(self, language: str) -> None:
        """A kernel that waited has ended, or did not answer when it was to be handed out."""

    def refilled(self, language: str, seconds: float) -> None:
        """A kernel waits that was begun so long ago, the wait for its turn included."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What is kept warm of every language in use."""

    limits: Limits
    #: how many kernels; 0: none
    size: int
    #: up to how many, when sessions come faster than kernels are started
    most: int
    #: seconds between a kernel's leaving and the start of the next: a start takes all processors of a small machine,
    #: and who was just served has them for the first cell
    breath: float = 0.25


class Pool:
    """Warm kernels per language that is in use."""

    def __init__(
        self,
        backend: Backend,
        starts: Starts,
        stock: Stock,
        clock: Callable[[], float],
        observer: Observer,
    ) -> None:
        """Begin empty.

        Args:
            backend: where kernels run.
            starts: how they are started.
            stock: what is kept warm.
            clock: the time in seconds.
            observer: told what happens.
        """
        self._backend = backend
        self._starts = starts
        self._stock = stock
        self._clock = clock
        self._observer = observer
        self._shelves: dict[str, Shelf] = {}
        self._refilling: dict[str, asyncio.Task[None]] = {}
        self._discarding: set[asyncio.Task[None]] = set()
        #: workspaces that are to be deleted
        self._unwanted: set[str] = set()
        self._closed = False

    def depth(self) -> int:
        """How many kernels wait."""
        return sum(map(len, self._shelves.values()))

    # -- keeping kernels warm -------------------------------------------------------------------------------

    def keep_warm(self, kernelspec: KernelSpec) -> None:
        """See to it that a language has its warm kernels."""
        refilling = self._refilling.get(kernelspec.name)
        if not self._closed and (refilling is None or refilling.done()):
            self._refilling[kernelspec.name] = spawn(self._refill(self._shelf(kernelspec)), f"warm {kernelspec.name}")

    def _shelf(self, kernelspec: KernelSpec) -> Shelf:
        if kernelspec.name not in self._shelves:
            self._shelves[kernelspec.name] = Shelf(kernelspec, self._stock.size, self._stock.most, self._clock())
        return self._shelves[kernelspec.name]

    async def _refill(self, shelf: Shelf) -> None:
        name = shelf.kernelspec.name
        await asyncio.sleep(self._stock.breath)
        while shelf.lacking:
            begun = self._clock()
            try:
                kernel = await self._starts.kernel(Launch(shelf.kernelspec, self._stock.limits), ahead=True)
            except SessionError as error:
                log.warning("no warm kernel", language=name, code=error.code, reason=error.message)
                shelf.pause(self._clock())
                return  # the next acquire asks again, and so does `tend` when the pause is over
            self._observer.refilled(name, self._clock() - begun)
            shelf.put(kernel)
            spawn(self._mourn(shelf, kernel), f"watch a warm {name} kernel")
            self._tell(shelf)

    async def _mourn(self, shelf: Shelf, kernel: Kernel) -> None:
        """Replace a kernel that ends while it waits: at once, but not one after the other."""
        cause = await kernel.wait()
        if not shelf.drop(kernel):
            return
        self._evict(shelf, kernel, cause.message)
        now = self._clock()
        if now >= shelf.paused_until:
            self.keep_warm(shelf.kernelspec)
        shelf.pause(now)

    def tend(self) -> None:
        """Let go of kernels that were not needed for long, and try again what has failed. For now and then."""
        for shelf in self._shelves.values():
            for kernel in shelf.shrink(self._clock()):
                self._discard(kernel)
            self._tell(shelf)
            if shelf.lacking and self._clock() >= shelf.paused_until:
                self.keep_warm(shelf.kernelspec)

    async def run(self, interval: float) -> NoReturn:
        """Tend it every `interval` seconds until cancelled, and delete what could not be deleted before."""

        async def look() -> None:
            await asyncio.sleep(interval)
            self.tend()
            await self._delete_unwanted()

        await forever(look, pause=interval)

    def _tell(self, shelf: Shelf) -> None:
        self._observer.shelved(shelf.kernelspec.name, len(shelf), shelf.target)

    # -- handing kernels out --------------------------------------------------------------------------------

    async def acquire(self, launch: Launch) -> Kernel:
        """A kernel for one session: a warm one that fits, or a new one.

        Raises:
            NotInitialized: the sandbox is not ready.
            StartFailed: it ended or stayed silent, or had no turn in time.
            BackendUnavailable: the engine does not answer.
        """
        self._starts.require()
        if not self._fits(launch):
            return await self._starts.kernel(launch)
        shelf = self._shelf(launch.kernelspec)
        while (kernel := shelf.take()) is not None:
            self._tell(shelf)
            self.keep_warm(launch.kernelspec)
            if await self._hand_out(kernel, launch):
                self._observer.leased(launch.kernelspec.name, warm=True)
                return kernel
            self._evict(shelf, kernel, "it did not answer when it was to be handed out")
        shelf.missed()
        self._observer.leased(launch.kernelspec.name, warm=False)
        try:
            return await self._starts.kernel(launch)
        finally:
            self.keep_warm(launch.kernelspec)

    def _fits(self, launch: Launch) -> bool:
        """Whether a warm kernel can become this one: all but what it can be given later is the same."""
        limits = replace(
            launch.limits, output=self._stock.limits.output
        )  # how much is kept is no matter of the kernel's
        return (
            replace(launch, env={}, cwd="", limits=limits) == Launch(launch.kernelspec, self._stock.limits)
            and launch.limits.output <= self._stock.limits.output
            and launch.kernelspec.takes(launch.env, launch.cwd)
        )

    async def _hand_out(self, kernel: Kernel, launch: Launch) -> bool:
        try:
            return await kernel.lease(launch)
        except BaseException:
            self._discard(kernel)  # somebody's by half: nobody else's
            raise

    async def hold(self, launch: Launch) -> KernelHandle:
        """A place for tools and files, without a kernel.

        Raises:
            NotInitialized: the sandbox is not ready.
            StartFailed: it could not be made, or had no turn in time.
            BackendUnavailable: the engine does not answer.
        """
        return await self._starts.place(launch)

    # -- letting go of them ---------------------------------------------------------------------------------

    def _evict(self, shelf: Shelf, kernel: Kernel, reason: str) -> None:
        log.warning(
            "a warm kernel is lost", language=shelf.kernelspec.name, kernel=kernel.handle.id[:12], reason=reason
        )
        self._observer.evicted(shelf.kernelspec.name)
        self._tell(shelf)
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
        """Delete what a session's kernels have written; see `KernelSource`."""
        self._unwanted.add(workspace)
        with going_on(f"removal of workspace {workspace}"):
            await self._backend.delete_workspace(workspace)
            self._unwanted.discard(workspace)

    async def _delete_unwanted(self) -> None:
        for workspace in list(self._unwanted):
            await self.delete_workspace(workspace)

    async def close(self) -> None:
        """End the kernels that wait, and warm no more. What cannot be deleted even now is left to the next start."""
        self._closed = True
        refilling = list(self._refilling.values())
        for task in refilling:
            task.cancel()  # a kernel that is just being started is ended on the way out
        await asyncio.gather(*refilling, return_exceptions=True)
        for shelf in self._shelves.values():
            for kernel in shelf.clear():
                self._discard(kernel)
        await asyncio.gather(*self._discarding, return_exceptions=True)
        await self._delete_unwanted()
