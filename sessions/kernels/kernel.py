"""A running kernel: its container or process, and its open connection, from the first answer to the end."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from kernel_image.protocol import LEASE_REQUEST, SESSION
from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.kernels.clock import KernelClock
from sessions.kernels.connection import Connection
from sessions.kernels.interrupts import Interrupts
from sessions.kernels.messages import Message
from sessions.kernels.preloading import Preloading, caused
from sessions.model.errors import ConnectionFailed, KernelDied, OutOfMemory, SessionError, StartFailed
from sessions.model.stopwatch import Stage, lap
from sessions.model.tasks import log_failure, shielded, spawn
from sessions.model.values import NO_PROGRAM, ExitReason, KernelExit

#: seconds from a kernel's start to its first answer, at most
START_TIMEOUT = 60.0
#: bytes that any kernel may send as one message, because kernels send their streams in pieces of about this size
MESSAGE_BYTES = 8 * 1024**2
#: bytes of a message besides its output
ENVELOPE_BYTES = 1024**2
#: seconds for a kernel to answer on its control channel, where it also answers while a cell runs
PULSE_TIMEOUT = 2.0


class KernelListener(Protocol):
    """Gets the messages of a kernel."""

    @property
    def in_use(self) -> bool:
        """Whether a cell runs or waits, or a file is being transferred."""

    def received(self, message: Message) -> None:
        """Called with each message of the kernel."""

    def missed(self, kernel: Kernel) -> None:
        """Called when a message that the kernel sent on shell may be lost."""


class Kernel:
    """One kernel, and the listener of its connection."""

    def __init__(self, launch: Launch, handle: KernelHandle, *, cut: bool = False) -> None:
        """Prepare the connection. `take_over` opens it.

        Args:
            launch: order that the kernel was started with.
            handle: container or process of the kernel.
            cut: whether the kernel continues from disk, and its connections to other hosts were cut.
        """
        self.launch = launch
        self.handle = handle
        # An output that is too large for its session need not be received either.
        bound = max(launch.limits.output + ENVELOPE_BYTES, MESSAGE_BYTES)
        spec = launch.kernelspec
        self.connection = Connection(
            handle.connection_info,
            self,
            max_message_bytes=bound,
            flush=spec.flush,
            prelude=spec.prelude,
            before_send=handle.make_responsive,
        )
        self._listener: KernelListener | None = None
        #: why the gateway ended the kernel. None means that it did not.
        self._cause: SessionError | None = None
        #: seconds that the start of the container or process took, and seconds from then to the first answer
        self.started_in = self.ready_in = 0.0
        #: stands still while the kernel is frozen
        self.clock = KernelClock()
        self.interrupts = Interrupts(self.connection, handle, self.clock, messages=spec.interrupt_messages)
        self.preloading = Preloading(self.connection, handle.preloaded)
        self.cut = cut
        #: whether its debugger was started: the debugger's threads and connections stay until the kernel ends
        self.debugged = False
        self._exit: asyncio.Task[KernelExit]

    # -- beginning ------------------------------------------------------------------------------------------

    @classmethod
    async def start(cls, backend: Backend, launch: Launch) -> Kernel:
        """Start a kernel and wait for its first answer.

        Raises:
            InvalidRequest: when the client asked for an image or a language, and the image lacks the kernel's program.
            StartFailed: when the kernel ended or did not answer. Then nothing of it is left.
            BackendUnavailable: when the engine does not answer.
        """
        named = replace(launch, workspace=launch.workspace or uuid.uuid4().hex)
        try:
            return await cls._start(backend, named)
        except BaseException:
            if named.workspace is not None and launch.workspace is None:
                with log_failure("delete workspace"):  # only logged: the caller must get the error of the start
                    await shielded(spawn(backend.delete_workspace(named.workspace), "delete workspace"))
            raise

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
            await shielded(spawn(kernel.kill(StartFailed()), "kill silent kernel"))
            raise
        kernel.started_in, kernel.ready_in = started - begun, clock() - started
        return kernel

    @classmethod
    async def take_over(cls, launch: Launch, handle: KernelHandle, *, cut: bool = False) -> Kernel:
        """Connect to a kernel that was started, perhaps by an earlier gateway. It may be busy and answer later.

        The arguments are those of the class.

        Raises:
            ConnectionFailed: when the gateway cannot open a connection. Then nothing of the kernel is left.
        """
        try:
            kernel = cls(launch, handle, cut=cut)
            kernel.connection.open()
        except BaseException:
            await shielded(spawn(handle.kill(), "kill unreachable kernel"))
            raise
        handle.attach(kernel, launch.tenant)
        kernel._exit = spawn(kernel._watch_exit(), "kernel exit")
        return kernel

    async def first_answer(self) -> None:
        """Wait until the kernel answers.

        Raises:
            InvalidRequest: when the client asked for an image or a language, and the image lacks the kernel's program.
            StartFailed: when the kernel ended or did not answer in time.
        """
        ready = spawn(self.connection.ready(), "kernel ready")
        try:
            await asyncio.wait({ready, self._exit}, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if self._exit.done():
                ended = self._exit.result()
                spec, image = self.launch.kernelspec, self.launch.image
                if ended.code == NO_PROGRAM and (image or spec.image):  # else the operator's mistake, not the client's
                    raise spec.missing_from(image)
                raise StartFailed(ended.at_start(self.launch.kernelspec.display_name))
            if not ready.done():
                raise StartFailed(f"the kernel did not answer within {START_TIMEOUT:.0f} s")
            ready.result()
            lap(Stage.ANSWER)
        finally:
            ready.cancel()

    async def answered(self) -> None:
        """Wait until the kernel has answered all earlier requests, without a time limit. Nobody asks more meanwhile.

        It handles the messages of a channel in order, so the gateway asks one thing more, and waits for that answer.

        Raises:
            ConnectionFailed: when the connection was closed meanwhile, or the kernel accepts no messages.
        """
        if self.launch.kernelspec.lease:  # other kernels, as R's, may answer nothing on control
            await self.connection.request("control", "kernel_info_request", {})
        await self.connection.ready()

    async def lease(self, launch: Launch) -> bool:
        """Give a warm kernel the environment and directory of a session, in one round trip on its control channel.

        If the kernel is importing a module ahead of need, the lease waits for the import, so that no cell must.

        Args:
            launch: the kernel's launch with the session's environment, directory and limit of output.

        Returns:
            whether the kernel answered. If it did not, the caller must end it.
        """
        variables = launch.variables if launch.kernelspec.lease else {}
        wanted = {"env": variables, "cwd": launch.cwd} if variables or launch.cwd else {}
        with suppress(TimeoutError, SessionError):
            async with self.preloading.paused(), asyncio.timeout(PULSE_TIMEOUT):
                kind = LEASE_REQUEST if wanted else "kernel_info_request"
                reply = await self.connection.request("control", kind, wanted)
                self.launch = replace(launch, workspace=self.launch.workspace)
                self.handle.attach(self, launch.tenant)
                if not launch.kernelspec.lease:
                    self._run_name_code()
                return reply.type == kind.replace("_request", "_reply") and self._cause is None
        return False

    def mark_debugged(self) -> None:
        """Mark the kernel as one whose debugger is or was started."""
        self.debugged = True

    async def rename(self) -> None:
        """Tell the kernel, which continues from the memory of another session's kernel, the name of its session.

        Raises:
            StartFailed: when the kernel did not answer.
            ConnectionFailed: when the connection was closed meanwhile.
        """
        if self.launch.kernelspec.lease and self.launch.session:
            try:
                async with asyncio.timeout(PULSE_TIMEOUT):
                    named = {"env": {SESSION: self.launch.session}, "cwd": ""}
                    await self.connection.request("control", LEASE_REQUEST, named)
            except TimeoutError:
                raise StartFailed("the kernel did not answer") from None
        self._run_name_code()

    def _run_name_code(self) -> None:
        """Let the kernel set the name of its session before its next cell, in a request that leaves no trace."""
        code, name = self.launch.kernelspec.name_code, self.launch.session
        if code and name:
            cell = {"code": code.replace("{name}", SESSION).replace("{value}", name)}
            silent = {"silent": True, "store_history": False, "allow_stdin": False}
            self.connection.send("shell", "execute_request", cell | silent)

    def attach(self, listener: KernelListener) -> None:
        """Pass all later messages to a listener, until the kernel has ended."""
        self._listener = listener

    @property
    def in_use(self) -> bool:
        """Whether a client uses the kernel, or it imports a module ahead of need."""
        return self.preloading.under_way or (self._listener is not None and self._listener.in_use)

    # -- a freeze -------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Freeze the kernel. Its cells, and their deadlines, go on after `resume`.

        Raises:
            BackendUnavailable: when the engine does not answer, or refuses; the kernel is not frozen.
        """
        self.clock.freeze()
        try:
            await self.handle.pause()
        except SessionError:
            self.clock.thaw()
            raise

    async def resume(self) -> None:
        """Let the kernel continue. Does nothing if it is not frozen.

        Raises:
            BackendUnavailable: when the engine does not answer; the kernel is still frozen.
            ConnectionFailed: when the engine refuses; the kernel is still frozen.
        """
        await self.handle.resume()
        self.clock.thaw()

    # -- events of the connection and the container ---------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """Pass a message to the listener, unless an import ahead of need has caused it."""
        if self._listener is not None and not caused(message):
            self._listener.received(message)

    def on_shell_loss(self) -> None:
        """Tell the listener that a message may be lost."""
        if self._listener is not None:
            self._listener.missed(self)

    def on_broken(self) -> None:
        """Kill the kernel."""
        self._condemn(KernelDied("the kernel sent garbage to the gateway"))

    def on_unreachable(self) -> None:
        """Kill the kernel."""
        self._condemn(
            ConnectionFailed("the kernel could not be reached any more and was ended; its variables are lost")
        )

    def on_out_of_memory(self, _handle: KernelHandle) -> None:
        """Kill the kernel if it does not answer, because it may hang instead of ending."""
        spawn(self._check_pulse(), "pulse after memory ran out")

    def _condemn(self, cause: SessionError) -> None:
        spawn(self.kill(cause), "kill broken kernel")

    # -- the end --------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the kernel has not ended."""
        return not self._exit.done()

    async def wait(self) -> SessionError:
        """Wait for the kernel's end.

        Returns:
            why it ended.
        """
        ended = await asyncio.shield(self._exit)
        if self._cause is not None:
            return self._cause
        if ended.reason is ExitReason.OOM:
            return self._out_of_memory()
        return KernelDied(f"{ended}; its variables are lost", exit_code=ended.code)

    def _out_of_memory(self) -> OutOfMemory:
        limit = self.launch.limits.memory
        told = f"The kernel used more memory than its limit of {limit // 2**20} MiB and was ended"
        return OutOfMemory(f"{told}; its variables are lost", limit=limit)

    async def kill(self, cause: SessionError) -> None:
        """End the kernel, and wait until its container or process has ended.

        Args:
            cause: error that a running cell gets.
        """
        if self.alive and self._cause is None:
            self._cause = cause
        self.connection.expect_end()
        await self.handle.kill()
        await asyncio.shield(self._exit)

    async def _watch_exit(self) -> KernelExit:
        ended = await self.handle.wait()
        self.clock.thaw()  # who waits for the kernel's time need not wait any more
        self.connection.close()
        # This breaks the reference cycle with the session, whose outputs are then freed without a garbage collection.
        self._listener = None
        return ended

    async def _check_pulse(self) -> None:
        with suppress(TimeoutError, SessionError):
            async with self.clock.timeout(PULSE_TIMEOUT):
                await self.connection.request("control", "kernel_info_request", {})
                return
        await self.kill(self._out_of_memory())
