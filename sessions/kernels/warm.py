"""The warm kernels of one language, or the warm sandboxes, and their wanted number: one stock of the pool.

The wanted number is `size` at first. It grows by one when a session finds no warm kernel, and shrinks by the number of
kernels that were not needed for a while. Warm kernels import the modules of their kernelspec. The pool decides when
kernels start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from sessions.backends.base import KernelHandle, Launch
from sessions.kernels.preloading import Preloading
from sessions.model.errors import SessionError, StartFailed
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import Limits

log = structlog.get_logger()

#: seconds of a period, at whose end unneeded kernels are removed
QUIET = 300.0
#: seconds before the pool retries a failed start on its own, and between two starts that replace dead kernels
PAUSE = 30.0
#: maximum of the pause, which doubles with each failed start, because a failed start may leave processes of the engine
PAUSE_MAX = 480.0


class PoolObserver(Protocol):
    """Gets the events of the pool. The language `sandbox` means the warm sandboxes."""

    def depth_changed(self, language: str, kernels: int, target: int) -> None:
        """Called with the number of warm kernels and their wanted number."""

    def leased(self, language: str, *, warm: bool) -> None:
        """Called when a session that could use a warm kernel got one, or found none."""

    def evicted(self, language: str) -> None:
        """Called when a warm kernel has ended, or did not answer when it was leased."""

    def refilled(self, language: str, seconds: float) -> None:
        """Called when a new warm kernel is ready, `seconds` after the pool began to wait for a turn to start it."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The warm kernels that the pool keeps for each language in use."""

    limits: Limits
    #: usual number of kernels. 0 means none.
    size: int
    #: maximum number of kernels, for times when sessions arrive faster than kernels start
    most: int
    #: seconds between a lease and the start of the next kernel. A start uses all processors of a small machine, and the
    #: client that has just got its kernel needs them for its first cell.
    refill_delay: float = 0.25
    #: usual number of warm sandboxes. 0 means none.
    sandboxes: int = 0

    def preload(self, kernelspec: KernelSpec) -> list[str]:
        """Return the modules that a warm kernel imports. None of them if they would fill much of its memory."""
        return list(kernelspec.preload_within(self.limits.memory))


class Waiting(Protocol):
    """A warm kernel, alone or in a warm sandbox."""

    @property
    def launch(self) -> Launch:
        """Order that the kernel was started with."""

    @property
    def handle(self) -> KernelHandle:
        """Container or process of the kernel."""

    @property
    def preloading(self) -> Preloading:
        """Imports of the kernel."""

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""

    async def wait(self) -> SessionError:
        """Wait for its end, and return why it ended."""

    async def kill(self, cause: SessionError) -> None:
        """End it, and wait until it has ended."""


WaitingT_co = TypeVar("WaitingT_co", bound=Waiting, covariant=True)


class Stock(Generic[WaitingT_co]):
    """What waits of one kind: the warm kernels of a language, or the warm sandboxes, oldest first."""

    def __init__(
        self,
        name: str,
        kernelspec: KernelSpec,
        settings: PoolSettings,
        now: float,
        start: Callable[[], Awaitable[WaitingT_co]],
    ) -> None:
        """Begin empty.

        Args:
            name: name in metrics and in the log.
            kernelspec: kernelspec of all these kernels.
            settings: number of kernels and their limits.
            now: time in seconds, as in all methods.
            start: starts one more.
        """
        self.name = name
        self._start = start
        self.kernelspec = kernelspec
        #: wanted number of kernels
        self.target = settings.size
        #: time before which the pool starts no kernel on its own
        self.paused_until = now
        #: number of starts that have failed in a row
        self._failures = 0
        self._size = settings.size
        self._most = max(settings.size, settings.most) if settings.size else 0
        self._warm: deque[WaitingT_co] = deque()
        #: modules to preload, and those modules whose import has already ended a kernel
        self._modules = settings.preload(kernelspec)
        self._fatal: set[str] = set()
        #: begin of the present period, and the smallest number of kernels that were left after a lease in it
        self._since = now
        self._spare = settings.size

    def __len__(self) -> int:
        return len(self._warm)

    def __iter__(self) -> Iterator[WaitingT_co]:
        return iter(self._warm)

    @property
    def lacking(self) -> bool:
        """Whether one more kernel is wanted."""
        return len(self._warm) < self.target

    async def grow(self) -> WaitingT_co:
        """Start one more kernel, and return it.

        Raises:
            SessionError: when it could not be started.
        """
        kernel = await self._start()
        self.succeeded()
        self._warm.append(kernel)
        return kernel

    async def preload(self) -> None:
        """Let the kernels import their modules, the oldest kernel first. This stops when a kernel is wanted.

        A module that a kernel cannot import is logged once, and no later kernel tries it.
        """
        while not self.lacking and (unprepared := self._unprepared()) is not None:
            kernel, module = unprepared
            try:
                problem = await kernel.preloading.load(module)
            except (TimeoutError, SessionError) as error:
                await kernel.kill(StartFailed())
                problem = f"the kernel ended, or took too long and was ended ({type(error).__name__})"
                # Something else may have ended the kernel, so a second kernel tries the module, too.
                if module not in self._fatal:
                    self._fatal.add(module)
                    continue
            if problem:
                log.warning("a module was not preloaded", language=self.name, module=module, reason=problem)
                self._modules.remove(module)

    def _unprepared(self) -> tuple[WaitingT_co, str] | None:
        """Return the oldest kernel that has not tried all modules, and the first module that it has not tried."""
        alive = (kernel for kernel in self._warm if kernel.alive)
        return next(
            ((one, module) for one in alive for module in self._modules if module not in one.preloading.tried), None
        )

    def take(self) -> WaitingT_co | None:
        """Remove and return the oldest kernel, if possible one that is not importing. None if there is no kernel."""
        if not self._warm:
            return None
        kernel = next((one for one in self._warm if not one.preloading.under_way), self._warm[0])
        self._warm.remove(kernel)
        self._spare = min(self._spare, len(self._warm))
        return kernel

    def give_up(self) -> WaitingT_co | None:
        """Remove and return the newest kernel, because a session needs its memory. None if there is no kernel."""
        return self._warm.pop() if self._warm else None

    def drop(self, kernel: Waiting) -> bool:
        """Remove a kernel that has ended.

        Returns:
            whether the kernel was still among the warm ones.
        """
        before = len(self._warm)
        self._warm = deque(each for each in self._warm if each is not kernel)
        return len(self._warm) < before

    def succeeded(self) -> None:
        """Record a start that succeeded."""
        self._failures = 0

    def missed(self) -> None:
        """Record that a session found no warm kernel."""
        self.target = min(self.target + 1, self._most)
        self._spare = 0

    def pause(self, now: float) -> None:
        """Prevent the pool from starting kernels on its own for `PAUSE` seconds."""
        self.paused_until = now + PAUSE

    def failed(self, now: float) -> None:
        """Record a failed start, after which the pool makes a pause. Each further pause is longer."""
        self.paused_until = now + min(PAUSE * 2**self._failures, PAUSE_MAX)
        self._failures += 1

    def may_start(self, now: float) -> bool:
        """Return whether the pool may start a kernel, because it makes no pause after a failed start."""
        return not self._failures or now >= self.paused_until

    def shrink(self, now: float) -> list[WaitingT_co]:
        """Remove the kernels that were not needed in the last period.

        Returns:
            the removed kernels. The caller must end them.
        """
        if now - self._since >= QUIET:
            self.target = max(self._size, self.target - self._spare)
            self._since, self._spare = now, self.target
        return [self._warm.pop() for _ in range(len(self._warm) - self.target)]

    def clear(self) -> list[WaitingT_co]:
        """Remove and return all kernels."""
        kernels = list(self._warm)
        self._warm.clear()
        return kernels
