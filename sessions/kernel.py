"""A running kernel: its handle and its open connection, from first answer to end."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import replace

from sessions.backends.base import Backend, KernelHandle, Launch, nobody_cares
from sessions.connection import Connection
from sessions.errors import KernelDied, OutOfMemory, SessionError, StartFailed
from sessions.models import ExitReason, KernelExit
from sessions.tasks import spawn, to_the_end

#: seconds a kernel may take from its start to its first answer
START_TIMEOUT = 60.0
#: bytes that any kernel may send as one message: its streams come in pieces of that order
MESSAGE_BYTES = 8 * 1024**2
#: what a message needs besides its output
ENVELOPE_BYTES = 1024**2
#: seconds for the kernel to acknowledge an interrupt that came as a message
INTERRUPT_TIMEOUT = 1.0
#: seconds for a kernel in doubt to answer on its control channel, which it does while a cell runs
PULSE_TIMEOUT = 2.0


class Kernel:
    """One kernel that has answered."""

    def __init__(self, launch: Launch, handle: KernelHandle, connection: Connection) -> None:
        #: what it was started for
        self.launch = launch
        self.handle = handle
        self.connection = connection
        #: why the gateway ended it, if it did
        self._cause: SessionError | None = None
        self._exit = spawn(self._wait(), "kernel exit")
        handle.on_out_of_memory = self._suspect
        connection.on_broken = lambda: self._condemn(KernelDied("the kernel sent garbage to the gateway"))

    @classmethod
    async def start(cls, backend: Backend, launch: Launch) -> Kernel:
        """Start a kernel and wait for its first answer.

        Raises:
            StartFailed: it ended or stayed silent; nothing of it is left.
            BackendUnavailable: the engine does not answer.
        """
        named = replace(launch, workspace=launch.workspace or uuid.uuid4().hex)
        try:
            return await cls._start(backend, named)
        except BaseException:
            if named.workspace is not None and launch.workspace is None:
                with suppress(SessionError):
                    await to_the_end(spawn(backend.delete_workspace(named.workspace), "delete workspace"))
            raise

    @classmethod
    async def _start(cls, backend: Backend, launch: Launch) -> Kernel:
        handle = await backend.start(launch)
        try:
            # Anything that a session would not keep of one message need not be buffered either.
            bound = max(launch.limits.output + ENVELOPE_BYTES, MESSAGE_BYTES)
            connection = Connection(handle.connection_info, max_message_bytes=bound, flush=launch.kernelspec.flush)
        except SessionError:
            await to_the_end(spawn(handle.kill(), "kill unreachable kernel"))
            raise
        kernel = cls(launch, handle, connection)
        try:
            await kernel._first_answer()
        except BaseException:
            await to_the_end(spawn(kernel.kill(StartFailed()), "kill silent kernel"))
            raise
        return kernel

    async def _first_answer(self) -> None:
        ready = spawn(self.connection.ready(), "kernel ready")
        try:
            await asyncio.wait({ready, self._exit}, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if self._exit.done():
                raise StartFailed(f"the kernel ended while it started (exit code {self._exit.result().code})")
            if not ready.done():
                raise StartFailed(f"the kernel did not answer within {START_TIMEOUT:.0f} s")
            ready.result()
        finally:
            ready.cancel()

    async def _wait(self) -> KernelExit:
        ended = await self.handle.wait()
        self.handle.on_out_of_memory = nobody_cares
        self.connection.close()
        return ended

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return not self._exit.done()

    async def wait(self) -> SessionError:
        """Wait for its end.

        Returns:
            why it ended.
        """
        ended = await asyncio.shield(self._exit)
        if self._cause is not None:
            return self._cause
        if ended.reason is ExitReason.OOM:
            return OutOfMemory()
        return KernelDied(exit_code=ended.code)

    async def interrupt(self) -> None:
        """Ask the kernel to interrupt its cell, by message: the cell sees KeyboardInterrupt."""
        with suppress(TimeoutError, SessionError):
            async with asyncio.timeout(INTERRUPT_TIMEOUT):
                await self.connection.request("control", "interrupt_request", {})

    async def signal(self) -> None:
        """Interrupt the kernel by SIGINT, which also reaches a cell that keeps the interpreter's lock."""
        await self.handle.interrupt()

    async def climb(self, over: asyncio.Event, rung: float) -> bool:
        """Interrupt a cell by message, then by signal.

        Args:
            over: set when the cell ends.
            rung: seconds to wait for that after each.

        Returns:
            whether it ended.
        """
        for interrupt in (self.interrupt, self.signal):
            await interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(rung):
                    await over.wait()
                    return True
        return False

    async def kill(self, cause: SessionError) -> None:
        """End it and wait until it is gone.

        Args:
            cause: what a cell in flight is told.
        """
        if self.alive and self._cause is None:
            self._cause = cause
        await self.handle.kill()
        await asyncio.shield(self._exit)

    def _suspect(self) -> None:
        spawn(self._check_pulse(), "pulse after memory ran out")

    async def _check_pulse(self) -> None:
        """Memory ran out in there. When the kernel is what was hit it may hang instead of ending."""
        with suppress(TimeoutError, SessionError):
            async with asyncio.timeout(PULSE_TIMEOUT):
                await self.connection.request("control", "kernel_info_request", {})
                return
        await self.kill(OutOfMemory())

    def _condemn(self, cause: SessionError) -> None:
        spawn(self.kill(cause), "kill broken kernel")
