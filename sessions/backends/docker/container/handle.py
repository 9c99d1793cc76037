"""The container of one kernel."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from docker.errors import APIError, NotFound

from sessions.backends.base import HandleListener
from sessions.backends.docker.container.pauses import Pauses
from sessions.backends.docker.container.tool import ToolStream
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.engine.engine import SIGNAL, Engine
from sessions.backends.docker.engine.timer_slack import TimerSlack
from sessions.backends.toolbox import Running, Toolbox
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import BackendUnavailable, ConnectionFailed, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit
from sessions.tenants.shares import NOBODY

#: seconds for the engine to remove a container. After that, the container counts as ended, and is removed later.
GIVE_UP = 10.0
#: seconds from SIGTERM to SIGKILL for the launcher
STOP = 1
#: seconds after the engine's `oom` event within which an end of the container counts as caused by the memory limit
OOM_TO_END = 3.0
#: seconds for the launcher to pass a signal on. It does not confirm this. Measured: 0.5 ms on a busy machine.
SIGNAL_DELAY = 0.2


class DockerHandle:
    """A started container. It is removed when it ends, for any reason."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        info: ConnectionInfo,
        tenant: str = NOBODY,
        *,
        was_running: bool = False,
    ) -> None:
        """Begin with a container that was made.

        Args:
            engine: engine that has the container.
            container: id of the container.
            info: connection info of its kernel. `note_started` completes it.
            tenant: tenant for which the container's calls to the engine take turns.
            was_running: whether an earlier gateway has started it.
        """
        self.id = container
        self.tenant = tenant
        self.connection_info = info
        self.preloaded: Collection[str] = ()
        self._listener: HandleListener | None = None
        self._engine = engine
        self.cgroup = ControlGroup(container)
        self.timer_slack = TimerSlack(self.cgroup)
        #: whether it was started. Only then, its absence from the list of running containers means that it has ended.
        self.was_running = was_running
        self._held = False  # whether its processes are stopped without the engine's knowledge
        self._killed = False
        #: time of the last `oom` event of the container
        self._out_of_memory: float | None = None
        self._toolbox = Toolbox(self._run_program)
        #: programs that the engine has started in the container: the one that runs tools, and tools by themselves
        self._programs = Running()
        self._streams: set[ToolStream] = set()
        self._exit: KernelExit | None = None  # how the container ended, as soon as that is known
        self._end: asyncio.Task[KernelExit] | None = None
        self._pauses = Pauses(engine, container, self.ended)
        self._loop = asyncio.get_running_loop()
        #: time of the last use
        self.used_at = self._loop.time()
        self._gone: asyncio.Future[KernelExit] = self._loop.create_future()

    def attach(self, listener: HandleListener, tenant: str) -> None:
        """Set the present user of the container."""
        self._listener, self.tenant = listener, tenant

    @property
    def in_use(self) -> bool:
        """Whether a cell or a tool runs in the container."""
        return self._toolbox.tools.number > 0 or (self._listener is not None and self._listener.in_use)

    @property
    def tools_run(self) -> bool:
        """Whether a tool runs in the container, or the program that runs tools."""
        return self._toolbox.tools.number > 0 or self._programs.number > 0

    async def tools_ended(self, seconds: float) -> bool:
        """Wait until no tool runs in the container, and return whether that came within so many seconds.

        A tool ends a moment after its client has got all of its answer. The program that runs tools is ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._toolbox.tools.none()
                await self._toolbox.end()
                await self._programs.none()
        return not self.tools_run

    def make_responsive(self) -> None:
        """Record the time of this use, and let the container react quickly again."""
        self.used_at = self._loop.time()
        with suppress(OSError):  # a gateway that may not set timers has not slowed the container down either
            self.timer_slack.make_prompt()

    async def wait(self) -> KernelExit:
        """Wait until the container has ended."""
        return await asyncio.shield(self._gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the launcher, which passes it on to the kernel."""
        self.make_responsive()
        with suppress(APIError, BackendUnavailable):  # if this fails, the caller kills the container later
            await self._engine.call(lambda: self._engine.api.kill(self.id, "SIGINT"), lane=SIGNAL, owner=self.tenant)
            await asyncio.sleep(SIGNAL_DELAY)

    def memory(self) -> int | None:
        """Return the container's memory in bytes, from its control group. None if that cannot be read."""
        return self.cgroup.memory()

    def processor_seconds(self) -> float | None:
        """Return the container's processor time in seconds, from its control group. None if that cannot be read."""
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

    def note_started(self, address: str) -> None:
        """Record that the container was started, with this IP address."""
        self.was_running = True
        self.connection_info = replace(self.connection_info, ip=address)

    def note_preloaded(self, modules: Collection[str]) -> None:
        """Record the modules that the kernel had imported, or tried to import, when it was started."""
        self.preloaded = modules

    @contextmanager
    def held(self, *, stays: bool) -> Iterator[None]:
        """Record that the processes are stopped without the engine's knowledge, inside the `with` block.

        Args:
            stays: True if they are still stopped after the block. If the block fails, they run again.
        """
        self._held = True
        try:
            yield
        except BaseException:
            self._held = False
            raise
        self._held = stays

    def note_released(self) -> None:
        """Record that the processes run again, after `held`."""
        self._held = False

    def note_out_of_memory(self) -> None:
        """Record that the container met its memory limit. This may not have ended it."""
        self._out_of_memory = self._loop.time()
        if self._listener is not None:
            self._listener.on_out_of_memory(self)

    def note_killed(self) -> None:
        """End the tools, because the container gets a deadly signal, perhaps from outside the gateway.

        The engine waits 10 s until the output of all tools was read. After that, it may never free the workspace.
        """
        for stream in self._streams:
            stream.discard()

    def note_paused(self) -> None:
        """Record that the container is paused. A pause from outside that is too long ends the container. Idempotent."""
        self._pauses.begun()

    def note_resumed(self) -> None:
        """Record the end of a pause."""
        self._pauses.ended()

    def ended(self) -> None:
        """Remove the container, which has ended or must end, and find out how it ended. Idempotent."""
        self.note_resumed()
        if self._end is None:
            self.make_responsive()
            self._end = spawn(self._reap(), f"end of container {self.id[:12]}")

    async def _reap(self) -> KernelExit:
        self.note_killed()
        removal = self._engine.insist(
            self._reap_blocking, name=f"removal of container {self.id[:12]}", owner=self.tenant
        )
        # Nobody uses the kernel any more, so the caller does not wait for an engine that does not answer.
        await asyncio.wait({removal}, timeout=GIVE_UP)
        if removal.done() and not removal.cancelled():
            ended = removal.result()
        else:
            ended = KernelExit(ExitReason.KILLED if self._killed else ExitReason.EXITED)
        for stream in self._streams:
            stream.abort()  # in some engine versions, a tool's stream does not end with its container
        self._streams.clear()
        self._listener = None
        self._gone.set_result(ended)
        return ended

    def _reap_blocking(self) -> KernelExit:
        api = self._engine.api
        try:
            state = api.inspect_container(self.id)["State"]
            if self._exit is None:  # a second attempt would see the state that the first one has caused
                self._exit = self._exit_of(state)
            with suppress(APIError, ProcessLookupError):  # the container is removed anyway
                if state.get("Paused"):
                    # The engine cannot end a paused container: it fails after 10 s, and leaves a process behind.
                    api.unpause(self.id)
                if self._held and state["Pid"]:  # 0 after the end, which would mean the gateway's own process group
                    os.kill(state["Pid"], signal.SIGKILL)  # a held container ignores signals that the engine sends
                elif self._killed:
                    # To remove a running container with many processes may take a minute (see the launcher), so the
                    # launcher is asked to stop first.
                    api.stop(self.id, timeout=STOP)
            api.remove_container(self.id, force=True)
        except NotFound:
            pass
        return self._exit or self._exit_of({})

    def _exit_of(self, state: dict[str, Any]) -> KernelExit:
        """Return how a container in this state has ended. If it ended on its own before a kill, that counts."""
        if self._killed and state.get("Running", True):
            return KernelExit(ExitReason.KILLED)
        reason = ExitReason.OOM if self._ended_of_memory(state) else ExitReason.EXITED
        return KernelExit(reason, state.get("ExitCode"))

    def _ended_of_memory(self, state: dict[str, Any]) -> bool:
        """Return whether the memory limit ended the container.

        The exit code does not show it, because the host's OOM killer often kills a part of gVisor, and then the process
        inside seems to have ended on its own. The engine's flag does not show it either: it stays set after any process
        inside was killed.
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
        self.make_responsive()
        async with aclosing(self._toolbox.run_tool(name, argument, stdin)) as output:
            async for piece in output:
                yield piece

    async def _run_program(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None
    ) -> AsyncGenerator[bytes, None]:
        self._programs.begin()
        # These are separate tasks, because a program must be read to its end, even if the caller is cancelled.
        opening = spawn(self._open_stream(name, argument), f"begin {name}")
        writing: asyncio.Task[None] | None = None
        try:
            stream = await asyncio.shield(opening)
            writing = spawn(stream.write(stdin), f"input of {name}")
            while piece := await stream.next_piece():
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionFailed("the sandbox ended during a file operation") from error
        except TimeoutError as error:
            raise ConnectionFailed("the sandbox makes no progress with a file operation") from error
        finally:
            if writing is not None:
                writing.cancel()
            spawn(self._finish_stream(opening), f"end of {name}")

    async def _open_stream(self, name: str, argument: str) -> ToolStream:
        stream = await ToolStream.open(self._engine, self.id, name, argument, self.tenant)
        self._streams.add(stream)
        if self._end is not None:  # the container began to end meanwhile
            stream.discard()
        return stream

    async def _finish_stream(self, opening: asyncio.Task[ToolStream]) -> None:
        try:
            with suppress(SessionError):
                stream = await opening
                await stream.read_to_end()
                if self._end is None:  # otherwise `_reap` closes the connection
                    self._streams.discard(stream)
        finally:
            self._programs.end()
