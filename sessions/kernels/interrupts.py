"""Interrupts the cells of one kernel, by message and by signal. No interrupt may hit a later cell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from sessions.backends.base import KernelHandle
from sessions.kernels.clock import KernelClock
from sessions.kernels.connection import Connection
from sessions.model.errors import SessionError
from sessions.model.tasks import spawn

#: seconds for the kernel to acknowledge an interrupt that was sent as a message
ACKNOWLEDGE_TIMEOUT = 1.0


class Interrupts:
    """Interrupts the cells of one kernel."""

    def __init__(
        self, connection: Connection, handle: KernelHandle, clock: KernelClock, *, messages: bool = True
    ) -> None:
        """Keep the arguments. Nothing is sent yet.

        Args:
            connection: connection to the kernel.
            handle: handle of the kernel.
            clock: clock of the kernel.
            messages: whether the kernel accepts interrupts as messages.
        """
        self._connection = connection
        self._handle = handle
        self._clock = clock
        self._first = self.by_message if messages else self.by_signal
        #: interrupts that may not have arrived yet, at most one by message and one by signal
        self._sending: dict[str, asyncio.Task[None]] = {}

    @property
    def under_way(self) -> bool:
        """Whether an interrupt may still arrive, and hit the cell that then runs."""
        return bool(self._sending)

    async def settle(self) -> None:
        """Wait until an interrupt of an earlier cell can no longer hit the next one.

        While a cell holds the interpreter's lock, the kernel cannot read the message, and reads it after the cell's
        end. If an interrupt is not acknowledged then either, the gateway no longer waits for it.
        """
        if self._sending:
            _, lost = await asyncio.wait(self._sending.values(), timeout=ACKNOWLEDGE_TIMEOUT)
            for interrupt in lost:
                interrupt.cancel()

    async def interrupt_until(self, done: asyncio.Event, step: float) -> bool:
        """Interrupt a cell twice: first by message, if the kernel accepts messages, and then by signal.

        A frozen kernel is interrupted when it runs again.

        Args:
            done: event that is set when the cell no longer runs.
            step: seconds of the kernel's time to wait for `done` after each interrupt.

        Returns:
            whether `done` was set in time.
        """
        for interrupt in (self._first, self.by_signal):
            await self._clock.running()
            await interrupt()
            with suppress(TimeoutError):
                async with self._clock.timeout(step):
                    await done.wait()
            if done.is_set():
                return True
        return False

    async def by_message(self) -> None:
        """Interrupt the running cell by a message. A Python cell gets `KeyboardInterrupt`."""
        await asyncio.wait({self._send("message", self._request)}, timeout=ACKNOWLEDGE_TIMEOUT)

    async def by_signal(self) -> None:
        """Interrupt the running cell by SIGINT, which also reaches a cell that holds the interpreter's lock."""
        await asyncio.wait({self._send("signal", self._handle.interrupt)})

    def _send(self, kind: str, send: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Send an interrupt, unless the last one has not arrived yet: a second one would find no cell to interrupt."""
        if kind not in self._sending:
            self._sending[kind] = spawn(send(), f"interrupt by {kind}")
            self._sending[kind].add_done_callback(lambda _: self._sending.pop(kind))
        return self._sending[kind]

    async def _request(self) -> None:
        with suppress(SessionError):  # the kernel has ended
            await self._connection.request("control", "interrupt_request", {})
