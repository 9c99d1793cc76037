"""The container of one kernel."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Collection
from contextlib import suppress
from typing import Any

from docker.errors import APIError, NotFound

from sessions.backends.base import HandleListener
from sessions.backends.docker.container.pauses import Pauses
from sessions.backends.docker.container.tool import ToolStream
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.engine.engine import SIGNAL, Engine
from sessions.backends.docker.engine.timers import Timers
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import BackendUnavailable, ConnectionFailed, QuotaExceeded, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit
from sessions.tenants.shares import NOBODY

#: seconds for the engine to remove a container; after that the container counts as gone, and is removed later
GIVE_UP = 10.0
#: seconds from SIGTERM to SIGKILL for the launcher
STOP = 1
#: longest time in seconds from the engine's `oom` event to an end that the memory limit caused
OOM_TO_END = 3.0
#: seconds for the launcher to pass a signal on, which it does not confirm; measured: 0.5 ms on a busy machine
SIGNAL_DELAY = 0.2
#: tools at a time, including those whose caller has left
TOOLS_MAX = 16


class DockerHandle:
    """A started container. It is removed when it ends, whatever the cause."""

    def __init__(self, engine: Engine, container: str, info: ConnectionInfo, tenant: str = NOBODY) -> None:
        self.id = container
        #: tenant whose turns its calls to the engine take
        self.tenant = tenant
        self.connection_info = info
        self.preloaded: Collection[str] = ()
        self._listener: HandleListener | None = None
        self._engine = engine
        self.cgroup = ControlGroup(container)
        self.timers = Timers(self.cgroup)
        #: True after the start; only then its absence from the list of running containers is an end
        self.was_running = False
        self.held = False  # True while its processes are stopped, which the engine does not know
        self._killed = False
        #: time of the last `oom` event of the container
        self._out_of_memory: float | None = None
        self._tools: set[ToolStream] = set()
        self._tools_open = 0  # those that have begun and not ended
        self._exit: KernelExit | None = None  # how it ended, as soon as that is known
        self._end: asyncio.Task[KernelExit] | None = None
        self._pauses = Pauses(engine, container, self.ended)
        self._loop = asyncio.get_running_loop()
        #: time of the last use
        self.used_at = self._loop.time()
        self._gone: asyncio.Future[KernelExit] = self._loop.create_future()

    def attach(self, listener: HandleListener, tenant: str) -> None:
        """Hand the container to its present user."""
        self._listener, self.tenant = listener, tenant

    @property
    def in_use(self) -> bool:
        """Whether a cell or a tool runs in the container."""
        return self.tools_run or (self._listener is not None and self._listener.in_use)

    @property
    def tools_run(self) -> bool:
        """Whether a tool runs in the container."""
        return self._tools_open > 0

    def rouse(self) -> None:
        """Note a use of the container, and end its rest."""
        self.used_at = self._loop.time()
        with suppress(OSError):  # only a gateway that may do this puts kernels to rest
            self.timers.make_prompt()

    async def wait(self) -> KernelExit:
        """Wait until the container is gone."""
        return await asyncio.shield(self._gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the launcher, which passes it on to the kernel."""
        self.rouse()
        with suppress(APIError, BackendUnavailable):  # gone or unreachable: the caller escalates further
            await self._engine.call(lambda: self._engine.api.kill(self.id, "SIGINT"), lane=SIGNAL, owner=self.tenant)
            await asyncio.sleep(SIGNAL_DELAY)

    def memory(self) -> int | None:
        """Return the container's memory in bytes, from its control group; None when that cannot be read."""
        return self.cgroup.memory()

    def processor_seconds(self) -> float | None:
        """Return the container's processor time in seconds, from its control group; None when that cannot be read."""
        return self.cgroup.seconds()

    async def pause(self) -> None:
        """Pause the container."""
        await self._pauses.pause(self.tenant)

    async def resume(self) -> None:
        """Resume the container."""
        await self._pauses.resume(self.tenant)

    async def kill(self) -> None:
        """Remove the container with all its processes."""
        self._killed = True
        self.ended()
        await self.wait()

    def note_out_of_memory(self) -> None:
        """Record that the container met its memory limit, which may not end it."""
        self._out_of_memory = self._loop.time()
        if self._listener is not None:
            self._listener.on_out_of_memory(self)

    def note_killed(self) -> None:
        """End the tools, because the container gets a deadly signal, perhaps from outside the gateway.

        The engine waits 10 s for the output of tools to be read, and gives up: then it may never free the workspace.
        """
        for tool in self._tools:
            tool.discard()

    def note_paused(self) -> None:
        """Record a pause; end the container if one from outside does not end soon. Idempotent."""
        self._pauses.begun()

    def note_resumed(self) -> None:
        """Record the end of a pause."""
        self._pauses.ended()

    def ended(self) -> None:
        """Remove a container that has ended or must end, and find out how it ended. Idempotent."""
        self.note_resumed()
        if self._end is None:
            self.rouse()
            self._end = spawn(self._reap(), f"end of container {self.id[:12]}")

    async def _reap(self) -> KernelExit:
        self.note_killed()
        removal = self._engine.insist(
            self._reap_blocking, name=f"removal of container {self.id[:12]}", owner=self.tenant
        )
        # The caller does not wait for an engine that does not answer: the kernel is no longer used.
        await asyncio.wait({removal}, timeout=GIVE_UP)
        if removal.done() and not removal.cancelled():
            ended = removal.result()
        else:
            ended = KernelExit(ExitReason.KILLED if self._killed else ExitReason.EXITED)
        for tool in self._tools:
            tool.abort()  # some engine versions never end the stream of a tool after its container
        self._tools.clear()
        self._listener = None
        self._gone.set_result(ended)
        return ended

    def _reap_blocking(self) -> KernelExit:
        api = self._engine.api
        try:
            state = api.inspect_container(self.id)["State"]
            if self._exit is None:  # a second attempt sees the state after the first
                self._exit = self._exit_of(state)
            with suppress(APIError, ProcessLookupError):  # the container is removed anyway
                if state.get("Paused"):
                    # The engine cannot end a paused container: it gives up after 10 s, and leaves a process behind.
                    api.unpause(self.id)
                if self.held and state["Pid"]:  # 0, when it has ended: that would be the gateway's own process group
                    os.kill(state["Pid"], signal.SIGKILL)  # its processes take no signal from the engine
                elif self._killed:
                    # It may need a minute to remove a running container that has had many processes: see the launcher.
                    api.stop(self.id, timeout=STOP)
            api.remove_container(self.id, force=True)
        except NotFound:
            pass
        return self._exit or self._exit_of({})

    def _exit_of(self, state: dict[str, Any]) -> KernelExit:
        """Return how a container in this state has ended, or ends now; an end of its own comes before a kill."""
        if self._killed and state.get("Running", True):
            return KernelExit(ExitReason.KILLED)
        reason = ExitReason.OOM if self._ended_of_memory(state) else ExitReason.EXITED
        return KernelExit(reason, state.get("ExitCode"))

    def _ended_of_memory(self, state: dict[str, Any]) -> bool:
        """Return True if the memory limit ended the container.

        The exit code does not show it: the host's OOM killer often kills a part of gVisor, which looks from inside
        like a process that ended on its own. The engine's own flag stays set once any process inside was killed.
        """
        if self._out_of_memory is None:
            return bool(state.get("OOMKilled"))
        return self._loop.time() - self._out_of_memory < OOM_TO_END

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the container."""
        if self._end is not None:
            raise ConnectionFailed("the sandbox is ending")
        if self._tools_open >= TOOLS_MAX:
            raise QuotaExceeded(f"at most {TOOLS_MAX} file operations of a session at a time", max=TOOLS_MAX)
        self.rouse()
        self._tools_open += 1
        # Separate tasks: a tool that has begun is read to its end, even when the caller leaves.
        opening = spawn(self._open_tool(name, argument), f"begin {name}")
        writing: asyncio.Task[None] | None = None
        try:
            tool = await asyncio.shield(opening)
            writing = spawn(tool.write(stdin), f"input of {name}")
            while piece := await tool.next_piece():
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionFailed("the sandbox ended during a file operation") from error
        except TimeoutError as error:
            raise ConnectionFailed("the sandbox makes no progress with a file operation") from error
        finally:
            if writing is not None:
                writing.cancel()
            spawn(self._finish_tool(opening), f"end of {name}")

    async def _open_tool(self, name: str, argument: str) -> ToolStream:
        tool = await ToolStream.open(self._engine, self.id, name, argument, self.tenant)
        self._tools.add(tool)
        if self._end is not None:  # the container began to end meanwhile
            tool.discard()
        return tool

    async def _finish_tool(self, opening: asyncio.Task[ToolStream]) -> None:
        try:
            with suppress(SessionError):
                tool = await opening
                await tool.read_to_end()
                if self._end is None:  # else `_reap` closes its connection
                    self._tools.discard(tool)
        finally:
            self._tools_open -= 1
