"""The Pod of one kernel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sessions.backends.base import HandleListener
from sessions.backends.kubernetes.cluster import Cluster
from sessions.backends.kubernetes.profile import IMAGE_DIR, PYTHON, bounded
from sessions.backends.kubernetes.states import state_of
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import BackendUnavailable, ConnectionFailed, QuotaExceeded, SessionError, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit, Limits

#: seconds until a Pod that must end counts as ended. Its removal is tried again until the API confirms it.
GIVE_UP = 10.0
#: seconds between two attempts to remove a Pod
AGAIN = 2.0
#: seconds for a Pod to run. A node may have to be found, and an image to be pulled.
START = 60.0
#: seconds for the launcher to pass a signal on. It does not confirm this.
SIGNAL_DELAY = 0.2
#: maximum tools at a time
TOOLS_MAX = 16


class PodHandle:
    """A Pod. It is removed when its kernel ends, for any reason."""

    def __init__(self, cluster: Cluster, name: str, info: ConnectionInfo, limits: Limits, *, gvisor: bool) -> None:
        """Begin with a Pod that is being made."""
        self.id = name
        self.connection_info = info
        self.preloaded: Collection[str] = ()
        self.limits = limits
        self._cluster = cluster
        self.gvisor = gvisor
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._tools = 0
        self._killed = False
        self._exit: KernelExit | None = None
        self._end: asyncio.Task[None] | None = None
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
        state = state_of(pod)
        if state.address and state.running and not self._running.done():
            self._running.set_result(state.address)
        if state.hopeless and not self._running.done():
            self._running.set_exception(StartFailed(state.hopeless))
        if state.end is not None:
            self.ended(state.end)

    def note_missing(self) -> None:
        """Record that the list of Pods lacks this one. A Pod that was not seen yet may still be made."""
        if self._running.done():
            self.note_removed()

    def note_removed(self) -> None:
        """Record that the Pod's object is gone."""
        self._removed.set()
        self.ended(KernelExit(ExitReason.EXITED, why="its Pod was deleted from outside of the gateway"))

    def ended(self, how: KernelExit) -> None:
        """Remove the Pod, whose kernel has ended in this way. The first report counts."""
        if self._end is not None:
            return
        self._exit = KernelExit(ExitReason.KILLED) if self._killed else how
        if not self._running.done():
            self._running.set_exception(StartFailed(f"the kernel ended while it started{self._because}"))
        self._running.exception()  # nobody may wait for it any more
        if how.reason is ExitReason.OOM and self._listener is not None:
            self._listener.on_out_of_memory(self)
        self._end = spawn(self._reap(), f"end of Pod {self.id}")

    @property
    def _because(self) -> str:
        return f": {self._exit.why}" if self._exit and self._exit.why else ""

    async def _reap(self) -> None:
        removal = spawn(self._remove(), f"removal of Pod {self.id}")
        await asyncio.wait({removal}, timeout=GIVE_UP)
        self._listener = None
        self.gone.set_result(self._exit or KernelExit(ExitReason.EXITED))

    async def _remove(self) -> None:
        self.leftover = True
        while not self._removed.is_set():
            with suppress(BackendUnavailable):
                if not await self._cluster.delete_pod(self.id):
                    self._removed.set()
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
        with suppress(SessionError):  # if this fails, the caller kills the Pod later
            async with self._cluster.run(self.id, ["sh", "-c", "kill -INT 1"]) as signal:
                await signal.read()
            await asyncio.sleep(SIGNAL_DELAY)

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
        """Remove the Pod."""
        if self._end is None:
            self._killed = True
            self.ended(KernelExit(ExitReason.KILLED))
        await self.wait()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the Pod."""
        command = bounded(self.limits, [PYTHON, "-I", "-S", f"{IMAGE_DIR}/{name}.py", argument], gvisor=self.gvisor)
        async for piece in self.output(command, stdin):
            yield piece

    async def output(self, command: list[str], stdin: AsyncIterable[bytes] | None) -> AsyncGenerator[bytes, None]:
        """Run a command in the Pod, and yield its output."""
        if self._end is not None:
            raise ConnectionFailed("the sandbox is ending")
        if self._tools >= TOOLS_MAX:
            raise QuotaExceeded(f"at most {TOOLS_MAX} file operations of a session at a time", max=TOOLS_MAX)
        self.make_responsive()
        self._tools += 1
        try:
            async with self._cluster.run(self.id, command) as stream:
                feeding = spawn(stream.feed(stdin), "input of a tool")
                try:
                    while piece := await self._unless_ended(stream.read):
                        yield piece
                    if self._end is not None:  # its end may have cut the output
                        raise ConnectionFailed("the sandbox ended during a file operation")
                finally:
                    feeding.cancel()
                    await asyncio.wait({feeding})  # the input may be a generator, which its owner closes next
        finally:
            self._tools -= 1

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
