"""The clock of one kernel, which stands still while the kernel is frozen. Deadlines of cells are in its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Timer:
    """A function that a `KernelClock` will call. Afterwards it is forgotten, because it may lead back to its timer."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        """Keep the arguments.

        Args:
            due: time of the kernel's clock at which the function is called.
            call: function.
        """
        self.due = due
        #: the function. None means that it was called, or will not be.
        self.call: Callable[[], None] | None = call
        #: the event loop's own timer
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Do not call the function. Idempotent."""
        self.call = None
        if self.handle is not None:
            self.handle.cancel()


class KernelClock:
    """Tells the time of one kernel, and calls functions at such times."""

    def __init__(self) -> None:
        """Begin with a kernel that runs."""
        self._loop = asyncio.get_running_loop()
        #: set while the kernel runs
        self._runs = asyncio.Event()
        self._runs.set()
        #: time of the event loop at which the kernel was frozen, and the seconds of all earlier freezes
        self._frozen_at = 0.0
        self._stood = 0.0
        #: timers that were due while the kernel was frozen
        self._waiting: list[Timer] = []

    def time(self) -> float:
        """Return the kernel's time in seconds. Only differences between two times mean something."""
        return (self._loop.time() if self._runs.is_set() else self._frozen_at) - self._stood

    def freeze(self) -> None:
        """Let the clock stand still. Idempotent."""
        if self._runs.is_set():
            self._frozen_at = self._loop.time()
            self._runs.clear()

    def thaw(self) -> None:
        """Let the clock go on. Idempotent."""
        if not self._runs.is_set():
            self._stood += self._loop.time() - self._frozen_at
            self._runs.set()
            waiting, self._waiting = self._waiting, []
            for timer in waiting:
                self._schedule(timer)

    async def running(self) -> None:
        """Wait until the kernel is not frozen."""
        await self._runs.wait()

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call a function after some seconds of the kernel's time."""
        timer = Timer(self.time() + seconds, call)
        self._schedule(timer)
        return timer

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """Bound the time of a block by seconds of the kernel's time, as `asyncio.timeout` does.

        Raises:
            TimeoutError: when the block takes longer.
        """
        async with asyncio.timeout(None) as bound:
            timer = self.call_later(seconds, lambda: bound.reschedule(self._loop.time()))
            try:
                yield
            finally:
                timer.cancel()

    def _schedule(self, timer: Timer) -> None:
        if timer.call is not None:
            timer.handle = self._loop.call_at(timer.due + self._stood, self._strike, timer, self._stood)

    def _strike(self, timer: Timer, stood: float) -> None:
        timer.handle = None
        if not self._runs.is_set():
            self._waiting.append(timer)
        elif stood != self._stood:  # the kernel was frozen meanwhile
            self._schedule(timer)
        elif (call := timer.call) is not None:
            timer.call = None
            call()
