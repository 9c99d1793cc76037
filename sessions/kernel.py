"""A running kernel: its handle and its open connection, from first answer to end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sessions.backends.base import Backend, KernelHandle, Launch, nobody_cares
from sessions.connection import Connection
from sessions.errors import ConnectionFailed, KernelDied, OutOfMemory, SessionError, StartFailed
from sessions.models import ExitReason, KernelExit
from sessions.tasks import going_on, spawn, to_the_end

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
        #: seconds that starting its container or process took, and from then to its first answer
        self.started_in = self.ready_in = 0.0
        #: interrupts that may not have arrived yet, one of a kind
        self._interrupts: dict[str, asyncio.Task[None]] = {}
        self._exit = spawn(self._wait(), "kernel exit")
        handle.on_out_of_memory = self._suspect
        connection.on_broken = lambda: self._condemn(KernelDied("the kernel sent garbage to the gateway"))
        connection.on_away = lambda: self._condemn(
            ConnectionFailed("the kernel could not be reached any more and was ended; its variables are lost")
        )

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
                with going_on("delete workspace"):  # why there is no kernel is what the caller is told
                    await to_the_end(spawn(backend.delete_workspace(named.workspace), "delete workspace"))
            raise

    @classmethod
    async def take_over(cls, launch: Launch, handle: KernelHandle) -> Kernel:
        """A kernel that an earlier gateway has started. It may be at work, and answers when it is done with that.

        Raises:
            ConnectionFailed: it cannot be talked to; nothing of it is left.
        """
        try:
            # Anything that a session would not keep of one message need not be buffered either.
            bound = max(launch.limits.output + ENVELOPE_BYTES, MESSAGE_BYTES)
            spec = launch.kernelspec
            connection = Connection(
                handle.connection_info, max_message_bytes=bound, flush=spec.flush, prelude=spec.prelude
            )
        except BaseException:
            await to_the_end(spawn(handle.kill(), "kill unreachable kernel"))
            raise
        return cls(launch, handle, connection)

    @classmethod
    async def _start(cls, backend: Backend, launch: Launch) -> Kernel:
        clock = asyncio.get_running_loop().time
        begun = clock()
        handle = await backend.start(launch)
        started = clock()
        kernel = await cls.take_over(launch, handle)
        try:
            await kernel.first_answer()
        except BaseException:
            await to_the_end(spawn(kernel.kill(StartFailed()), "kill silent kernel"))
            raise
        kernel.started_in, kernel.ready_in = started - begun, clock() - started
        return kernel

    async def first_answer(self) -> None:
        """Wait until it answers.

        Raises:
            StartFailed: it ended or stayed silent.
        """
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

    async def lease(self, launch: Launch) -> bool:
        """Make a kernel that has waited what somebody wants; one round trip on its control channel.

        Args:
            launch: as it was started, but with an environment, directory and bound of output that it is to take now.

        Returns:
            whether it answered; one that did not is of no use to anybody.
        """
        wanted = {"env": dict(launch.env), "cwd": launch.cwd} if launch.env or launch.cwd else {}
        with suppress(TimeoutError, SessionError):
            async with asyncio.timeout(PULSE_TIMEOUT):
                kind = "lease" if wanted else "kernel_info"
                reply = await self.connection.request("control", f"{kind}_request", wanted)
                self.launch = replace(launch, workspace=self.launch.workspace)
                return reply.type == f"{kind}_reply"
        return False

    async def interrupt(self) -> None:
        """Ask the kernel to interrupt its cell, by message: the cell sees KeyboardInterrupt."""
        await asyncio.wait({self._on_its_way("message", self._ask_to_interrupt)}, timeout=INTERRUPT_TIMEOUT)

    async def signal(self) -> None:
        """Interrupt the kernel by SIGINT, which also reaches a cell that keeps the interpreter's lock."""
        await asyncio.wait({self._on_its_way("signal", self.handle.interrupt)})

    def _on_its_way(self, kind: str, send: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Send one, unless the last has not arrived yet: a second would find nothing to do."""
        if kind not in self._interrupts:
            self._interrupts[kind] = spawn(send(), f"interrupt by {kind}")
            self._interrupts[kind].add_done_callback(lambda _: self._interrupts.pop(kind))
        return self._interrupts[kind]

    async def _ask_to_interrupt(self) -> None:
        with suppress(SessionError):  # it has ended
            await self.connection.request("control", "interrupt_request", {})

    @property
    def interrupting(self) -> bool:
        """Whether an interrupt may still arrive, and hit whatever runs then."""
        return bool(self._interrupts)

    async def settle(self) -> None:
        """Wait until what was to be interrupted cannot be mistaken for what comes next.

        A cell that keeps the interpreter's lock also keeps the kernel from reading the message, which is read when the
        cell has ended. One that is not acknowledged even then is given up.
        """
        if self._interrupts:
            _, lost = await asyncio.wait(self._interrupts.values(), timeout=INTERRUPT_TIMEOUT)
            for interrupt in lost:
                interrupt.cancel()

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
