"""Starts kernels, a limited number at a time in the whole gateway.

A start uses a processor for a second or more. A hundred starts at once would all be late, and so would the cells that
run meanwhile. In turn, each kernel is ready as soon as it can be, and the first one at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.errors import StartFailed
from sessions.kernels.kernel import Kernel
from sessions.kernels.readiness import Readiness

#: seconds that a caller waits for the turn to start its kernel
WAIT_MAX = 120.0


class Starts:
    """Starts kernels and containers, each when its turn has come and the sandbox is ready."""

    def __init__(
        self, backend: Backend, readiness: Readiness, at_once: int, on_started: Callable[[float, float | None], None]
    ) -> None:
        """Begin with all turns free.

        Args:
            backend: where kernels run.
            readiness: whether they can be started there.
            at_once: number of starts at a time.
            on_started: called with the seconds that the start of a container took, and those from then to the kernel's
                first answer; None: the container has no kernel.
        """
        self._backend = backend
        self._readiness = readiness
        self._turns = Turns(at_once)
        self._on_started = on_started

    @property
    def waiting(self) -> int:
        """Number of starts that wait for their turn, without those of warm kernels."""
        return self._turns.waiting

    def require(self) -> None:
        """Raise an error unless kernels can be started.

        Raises:
            NotInitialized: when something is missing or does not hold.
            BackendUnavailable: when the engine does not answer.
        """
        self._readiness.require()

    async def start_kernel(self, launch: Launch, *, ahead: bool = False) -> Kernel:
        """Start a kernel and wait for its first answer.

        Args:
            launch: properties of the kernel.
            ahead: True for a warm kernel, which no session waits for.

        Raises:
            NotInitialized: when the sandbox is not ready.
            StartFailed: when the kernel ended or did not answer, or had no turn in time.
            BackendUnavailable: when the engine does not answer.
        """
        self._readiness.require()
        async with self._turns.turn(ahead=ahead):
            self._readiness.require()  # it may have changed meanwhile: then all waiting callers get the error at once
            kernel = await Kernel.start(self._backend, launch)
        self._on_started(kernel.started_in, kernel.ready_in)
        return kernel

    async def start_container(self, launch: Launch) -> KernelHandle:
        """Start a container that holds a workspace, without a kernel.

        Raises:
            SessionError: as in `start_kernel`.
        """
        self._readiness.require()
        async with self._turns.turn():
            self._readiness.require()
            begun = asyncio.get_running_loop().time()
            handle = await self._backend.start(launch)
            self._on_started(asyncio.get_running_loop().time() - begun, None)
        return handle


class Turns:
    """Gives turns to starts in order; starts of warm kernels get theirs after all those that a session waits for."""

    def __init__(self, at_once: int) -> None:
        """Begin with all turns free.

        Args:
            at_once: number of starts at a time.
        """
        self._free = at_once
        self._wanted: deque[asyncio.Future[None]] = deque()
        self._ahead: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Number of starts that wait for their turn, without those of warm kernels."""
        return len(self._wanted)

    @asynccontextmanager
    async def turn(self, *, ahead: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and keep it until the context is left.

        Args:
            ahead: True for a warm kernel, which no session waits for.

        Raises:
            StartFailed: when too many starts were ahead of this one.
        """
        if self._free:  # then no start waits
            self._free -= 1
        else:
            await self._queue(self._ahead if ahead else self._wanted, None if ahead else WAIT_MAX)
        try:
            yield
        finally:
            self._pass_on()

    async def _queue(self, queue: deque[asyncio.Future[None]], seconds: float | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # the turn was given in the moment in which the wait ended
            else:
                queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise StartFailed(
                    f"too many kernels are being started: this one had no turn within {seconds:.0f} s"
                ) from error
            raise

    def _pass_on(self) -> None:
        for queue in (self._wanted, self._ahead):
            if queue:
                queue.popleft().set_result(None)
                return
        self._free += 1
