"""Starting kernels: so many at a time over the whole gateway.

Starting one takes a processor for a second or more. A hundred at once would all be late, and so would the cells that
run meanwhile; one after the other each is there as soon as it can be, and the first at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.errors import StartFailed
from sessions.kernel import Kernel
from sessions.readiness import Readiness

#: seconds that who wants a kernel waits for the turn to start it
WAIT_MAX = 120.0


class Starts:
    """Starts what a session needs, when its turn has come and the sandbox is ready."""

    def __init__(
        self, backend: Backend, readiness: Readiness, at_once: int, on_started: Callable[[float, float | None], None]
    ) -> None:
        """Begin with all turns free.

        Args:
            backend: where kernels run.
            readiness: whether they can be started there.
            at_once: how many may start at a time.
            on_started: told the seconds in which a container was started, and those from then to the kernel's first
                answer; None: it has no kernel.
        """
        self._backend = backend
        self._readiness = readiness
        self._turns = Turns(at_once)
        self._on_started = on_started

    @property
    def waiting(self) -> int:
        """How many wait for their turn, those that are only to be kept warm left out."""
        return self._turns.waiting

    def require(self) -> None:
        """Go on only when kernels can be started.

        Raises:
            NotInitialized: something is missing or does not hold.
            BackendUnavailable: the engine does not answer.
        """
        self._readiness.require()

    async def kernel(self, launch: Launch, *, ahead: bool = False) -> Kernel:
        """Start a kernel and wait for its first answer.

        Args:
            launch: what it must be.
            ahead: nobody waits for it yet.

        Raises:
            NotInitialized: the sandbox is not ready.
            StartFailed: it ended or stayed silent, or had no turn in time.
            BackendUnavailable: the engine does not answer.
        """
        self._readiness.require()
        async with self._turns.turn(ahead=ahead):
            self._readiness.require()  # it may have changed meanwhile, and all who wait are told at once
            kernel = await Kernel.start(self._backend, launch)
        self._on_started(kernel.started_in, kernel.ready_in)
        return kernel

    async def place(self, launch: Launch) -> KernelHandle:
        """Start what holds a workspace, without a kernel.

        Raises:
            SessionError: as `kernel` does.
        """
        self._readiness.require()
        async with self._turns.turn():
            self._readiness.require()
            begun = asyncio.get_running_loop().time()
            handle = await self._backend.start(launch)
            self._on_started(asyncio.get_running_loop().time() - begun, None)
        return handle


class Turns:
    """First come, first served; but what is only kept warm comes after all that somebody waits for."""

    def __init__(self, at_once: int) -> None:
        """Begin with all turns free.

        Args:
            at_once: how many may start at a time.
        """
        self._free = at_once
        self._wanted: deque[asyncio.Future[None]] = deque()
        self._ahead: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a kernel's turn, those that are to be kept warm left out."""
        return len(self._wanted)

    @asynccontextmanager
    async def turn(self, *, ahead: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the context is left.

        Args:
            ahead: nobody waits for this kernel yet.

        Raises:
            StartFailed: so many came before that there was none in time.
        """
        if self._free:  # then nobody waits
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
                self._pass_on()  # it came at the very moment in which we left
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
