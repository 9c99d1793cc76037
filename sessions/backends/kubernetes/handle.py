"""The Pod of one kernel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from sessions.backends.base import HandleListener
from sessions.backends.kubernetes.cluster import Cluster, Refused
from sessions.backends.kubernetes.profile import EVERYWHERE, IMAGE_DIR, PYTHON, bounded
from sessions.backends.kubernetes.states import State, state_of
from sessions.backends.kubernetes.streams import TIMEOUT, Stream
from sessions.backends.toolbox import Toolbox
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import BackendUnavailable, ConnectionFailed, SessionError, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit, Limits

log = structlog.get_logger()

#: seconds until a Pod that must end counts as ended. Its removal is tried again until the API confirms it.
GIVE_UP = 10.0
#: seconds between two attempts to remove a Pod
AGAIN = 2.0
#: seconds for a Pod to run. A node may have to be found, and an image to be pulled.
START = 60.0
#: seconds to send the launcher a signal, and for the launcher to pass it on. It does not confirm this.
SIGNAL, SIGNAL_DELAY = 10.0, 0.2
#: seconds for the next container of a Pod that stays to run
NEXT = 30.0
#: seconds for a report that tells more about an end
UNSURE = 10.0


class PodHandle:
    """A container of a Pod. The Pod is removed when its kernel ends, unless the session's files are in it."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        info: ConnectionInfo,
        limits: Limits,
        on_gone: Callable[[PodHandle], None],
        *,
        gvisor: bool,
        number: int = 0,
    ) -> None:
        """Begin with a Pod that is being made.

        Args:
            cluster: calls the API.
            name: name of the Pod.
            info: connection info of the kernel.
            limits: limits of the kernel.
            on_gone: called when the kernel has ended, and its Pod was removed or stays.
            gvisor: whether the runtime is gVisor.
            number: number of the container in its Pod. The first one has the kernel, the next one only its files.
        """
        self.id = name
        self.connection_info = info
        self.preloaded: Collection[str] = ()
        self.limits = limits
        self._cluster = cluster
        self.gvisor = gvisor
        self.number = number
        #: whether the session's files are here, so that the Pod stays when its kernel ends
        self._has_files = False
        #: whether the Pod has stayed
        self.stays = False
        #: what the Pod's object was last
        self.seen: dict[str, Any] = {}
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._toolbox = Toolbox(self._run_program)
        self._killed = False
        #: what is known of the container's end, while a report that tells more is awaited
        self._unsure: State | None = None
        self._exit: KernelExit | None = None
        self._listener: HandleListener | None = None
        #: set when the container runs, or with an error when it never will
        self._running: asyncio.Future[str] = self._loop.create_future()
        self._removed = asyncio.Event()
        self.gone: asyncio.Future[KernelExit] = self._loop.create_future()
        #: whether the removal of the Pod was asked for, and has not been confirmed
        self.leftover = False

    # -- what the watch reports ---------------------------------------------------------------------------------

    def note(self, pod: dict[str, Any]) -> None:
        """Take a new state of the Pod."""
        self.seen = pod
        address = self.connection_info.ip
        state = state_of(pod, self.number, "" if address == EVERYWHERE else address)
        if state.address and state.running and not self._running.done():
            self._running.set_result(state.address)
        if state.hopeless and not self._running.done():
            self._running.set_exception(StartFailed(state.hopeless))
        if state.end is None:
            return
        if not state.unsure or self._killed:
            self.ended(state.end, stays=state.stays)
        elif self._unsure is None:
            self._unsure = state
            self._loop.call_later(UNSURE, self._end_unsure)

    def _end_unsure(self) -> None:
        """End with what is known, because a report that tells more is not awaited any longer."""
        if self._unsure is not None and self._unsure.end is not None:
            self.ended(self._unsure.end, stays=self._unsure.stays)

    def note_missing(self) -> None:
        """Record that the list of Pods lacks this one. A Pod that was not seen yet may still be made."""
        if self._running.done():
            self.note_removed()

    def note_removed(self) -> None:
        """Record that the Pod's object is gone."""
        self._removed.set()
        self.ended(KernelExit(ExitReason.EXITED, why="its Pod was deleted from outside of the gateway"))

    def ended(self, how: KernelExit, *, stays: bool = False) -> None:
        """End: the kernel has ended in this way. The first report counts.

        Args:
            how: how the kernel has ended.
            stays: whether the Pod can stay, with the session's files. Otherwise it is removed.
        """
        if self._exit is not None:
            return
        self._exit = KernelExit(ExitReason.KILLED) if self._killed else how
        if not self._running.done():
            self._running.set_exception(StartFailed(f"the kernel ended while it started{self._because}"))
        self._running.exception()  # nobody may wait for it any more
        if how.reason is ExitReason.OOM and self._listener is not None:
            self._listener.on_out_of_memory(self)
        self.stays = stays and self._has_files
        if self.stays:
            self._gone()
        else:
            spawn(self._reap(), f"end of Pod {self.id}")

    def _gone(self) -> None:
        self._listener = None
        self._on_gone(self)  # at once: whoever waits for the end may start the next kernel
        self.gone.set_result(self._exit or KernelExit(ExitReason.EXITED))

    def next(self) -> PodHandle:
        """Return the next container of a Pod that stays. It holds files, and has no kernel."""
        info, number = self.connection_info, self.number + 1
        after = PodHandle(self._cluster, self.id, info, self.limits, self._on_gone, gvisor=self.gvisor, number=number)
        spawn(after._require_running(), f"next container of {self.id}")
        return after

    async def _require_running(self) -> None:
        """Remove the Pod if its next container does not run, perhaps because the present one has not ended."""
        try:
            async with asyncio.timeout(NEXT):
                await self.running()
        except (StartFailed, TimeoutError):
            await self.kill()

    def take_files(self) -> None:
        """Record that the session's files are here."""
        self._has_files = True

    async def give_up_files(self) -> None:
        """Let the Pod end with its kernel from now on, and at once if it has no kernel: nobody needs its files."""
        self._has_files = False
        if self.number:
            await self.kill()

    async def remove(self) -> None:
        """End the kernel, and remove its Pod."""
        self._has_files = False
        await self.kill()

    @property
    def alive(self) -> bool:
        """Whether the container has not ended."""
        return self._exit is None

    @property
    def _because(self) -> str:
        return f": {self._exit.why}" if self._exit and self._exit.why else ""

    async def _reap(self) -> None:
        removal = spawn(self._remove(), f"removal of Pod {self.id}")
        await asyncio.wait({removal}, timeout=GIVE_UP)
        self._gone()

    async def _remove(self) -> None:
        self.leftover, refused = True, False
        while not self._removed.is_set():
            try:
                if not await self._cluster.delete_pod(self.id):
                    self._removed.set()
            except BackendUnavailable:
                pass  # told by the watch
            except Refused as error:  # perhaps only for now, such as an expired token
                if not refused:
                    log.warning(
                        "the cluster refuses to remove a Pod, which is tried again", pod=self.id, reason=str(error)
                    )
                refused = True
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN):
                    await self._removed.wait()
        self.leftover = False

    async def removed(self) -> None:
        """Wait until the API has confirmed the removal of the Pod."""
        await self._removed.wait()

    # -- the contract -------------------------------------------------------------------------------------------

    async def running(self) -> str:
        """Wait until the container runs, and return the Pod's address.

        Raises:
            StartFailed: when it will not run.
        """
        try:
            async with asyncio.timeout(START):
                address = await asyncio.shield(self._running)
        except TimeoutError as error:
            raise StartFailed(f"the Pod did not run within {START:g} s") from error
        self.connection_info = replace(self.connection_info, ip=address)
        return address

    def attach(self, listener: HandleListener, _tenant: str) -> None:
        """Set the present user of the Pod."""
        self._listener = listener

    def make_responsive(self) -> None:
        """Record the time of this use."""
        self.used_at = self._loop.time()

    async def wait(self) -> KernelExit:
        """Wait until the Pod has ended."""
        return await asyncio.shield(self.gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the launcher, which passes it on to the kernel."""
        self.make_responsive()
        if await self._signal("INT"):  # else the caller kills the Pod later
            await asyncio.sleep(SIGNAL_DELAY)

    async def _signal(self, name: str) -> bool:
        """Send a signal to the launcher. Return whether the Pod could be reached."""
        with suppress(SessionError, TimeoutError):
            async with (
                asyncio.timeout(SIGNAL),
                self._cluster.run(self.id, ["sh", "-c", f"kill -{name} 1"]) as signal,
            ):
                await signal.read()
                return True
        return False

    def memory(self) -> None:
        """Return None: this version does not measure Pods."""

    def processor_seconds(self) -> None:
        """Return None: this version does not measure Pods."""

    async def pause(self) -> None:
        """Refuse.

        Raises:
            ConnectionFailed: always.
        """
        raise ConnectionFailed("kernels in a Kubernetes cluster cannot be paused")

    async def resume(self) -> None:
        """Do nothing, because no Pod is ever paused."""

    async def kill(self) -> None:
        """End the kernel. Its Pod stays if the session's files are in it, and if the launcher can be told."""
        if self._exit is None and not self._killed:
            self._killed = True
            if self._unsure is not None:  # the container has ended, so its launcher cannot be told
                self._end_unsure()
            else:
                told = self._has_files and await self._signal("TERM")
                self.ended(KernelExit(ExitReason.KILLED), stays=told)
        await self.wait()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the Pod."""
        if self._exit is not None:
            raise ConnectionFailed("the sandbox is ending")
        async with aclosing(self._toolbox.run_tool(name, argument, stdin)) as output:
            async for piece in output:
                yield piece

    async def _run_program(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None
    ) -> AsyncGenerator[bytes, None]:
        command = bounded(self.limits, [PYTHON, "-I", "-S", f"{IMAGE_DIR}/{name}.py", argument], gvisor=self.gvisor)
        async with aclosing(self.output(command, stdin)) as output:
            async for piece in output:
                yield piece

    async def end_toolbox(self) -> None:
        """End the program that runs tools. The container stays."""
        await self._toolbox.end()

    async def output(
        self,
        command: list[str],
        stdin: AsyncIterable[bytes] | None,
        *,
        within: float | None = TIMEOUT,
        successes: Collection[int] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Run a command in the Pod, and yield its output.

        Args:
            command: the command.
            stdin: its input.
            within: seconds that it may print nothing. None means no limit.
            successes: exit codes with which it has succeeded. None means all.

        Raises:
            ConnectionFailed: when the container has ended, or cannot be reached, or the command has failed.
        """
        if self._exit is not None:
            raise ConnectionFailed("the sandbox is ending")
        self.make_responsive()
        async with self._cluster.run(self.id, command) as stream:
            feeding = spawn(stream.feed(stdin), "input of a tool")
            try:
                while piece := await self._unless_ended(partial(stream.read, within=within)):
                    yield piece
                if self._exit is not None:  # its end may have cut the output
                    raise ConnectionFailed("the sandbox ended during a file operation")
                if successes is not None:
                    self._require(stream, successes)
            finally:
                feeding.cancel()
                await asyncio.wait({feeding})  # the input may be a generator, which its owner closes next

    def _require(self, stream: Stream, successes: Collection[int]) -> None:
        if stream.exit_code not in successes:
            log.warning("a program in a Pod has failed", pod=self.id, exit_code=stream.exit_code)
            raise ConnectionFailed("a file operation in the sandbox has failed")

    async def _unless_ended(self, read: Callable[[], Any]) -> bytes:
        """Return the next piece of output. The API may keep a connection to a container that has ended."""
        reading = spawn(read(), "output of a tool")
        try:
            await asyncio.wait({reading, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise ConnectionFailed("the sandbox ended during a file operation")
            return bytes(reading.result())
        finally:
            reading.cancel()
