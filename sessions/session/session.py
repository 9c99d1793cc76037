"""A session: a kernel with a name, and the operations of its clients. This module knows no HTTP and no engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from sessions.backends.base import KernelHandle, Launch, no_op
from sessions.cells.execution import Question
from sessions.cells.idempotency import IdempotencyCache, Run
from sessions.cells.timeline import Timeline
from sessions.cells.transcript import Entry, Transcript
from sessions.channels.hub import ChannelHub
from sessions.channels.requests import Rules
from sessions.channels.unread import Unread
from sessions.debugging.debugger import Debugger
from sessions.debugging.model import DebugState, Seen
from sessions.debugging.post_mortem import frames_of, value_of
from sessions.kernels.completion import Completion, complete
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.kernels.variables import VariableDetail, VariableList, describe_variable, list_variables
from sessions.model.checkpoint import Checkpoint, OnIdle, SleepImage
from sessions.model.errors import DebugRefused, InvalidRequest, SessionClosed, SessionError, SessionNotFound
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, StateNotice
from sessions.session.checkpointing import Checkpointing
from sessions.session.executions import Executions, Running
from sessions.session.kernel_slot import KernelSlot
from sessions.session.owner import Owner
from sessions.session.record import NO_ORIGIN, Identity, Origin
from sessions.session.services import SessionServices
from sessions.session.states import State
from sessions.session.turn import Turn
from sessions.store.session_records import ContainerRecord


class Session(Owner):
    """One tenant's named kernel, and the listener of all its kernels."""

    def __init__(
        self,
        identity: Identity,
        services: SessionServices,
        notice: StateNotice,
        origin: Origin = NO_ORIGIN,
        require_running: Callable[[], None] = no_op,
    ) -> None:
        """Make a session that has no kernel yet. `KernelSlot` describes the arguments."""
        spec = identity.spec
        super().__init__(identity.key, spec, identity.created_at, services)
        self.id = identity.id
        self.spec = spec
        self.kernelspec = identity.kernelspec
        self._require_running = require_running
        self._slot = KernelSlot(identity, services, notice, origin, self)
        #: set when clients must leave: the session was ended, or another gateway continues with it
        self.clients_must_leave = asyncio.Event()
        #: the session's channel clients
        self.channels = ChannelHub(
            Rules(
                admit=lambda: services.quotas.execution_now(self.key.tenant),
                permit=lambda: services.quotas.permit(self.key.tenant),
                count_bytes=partial(services.waiting, self.key.tenant),
                begins=self._begin_channel_cell,
                ended=partial(services.journal.ended, self.key),
                left=services.journal.left,
                failed=self._failed,
                servers=partial(services.servers_for, self.key),
                debugs=self._slot.record_debugged,
                timeouts=services.timeouts,
                deadline=spec.max_execute_timeout,
            ),
            notice,
            Unread(services.unread, identity.key.tenant),
        )
        turn = Turn(self._activity, self.channels.quiet)
        #: debugs one of its cells at a time
        self.debugger = Debugger(identity.kernelspec, self.submit, self._slot.record_debugged)
        #: the session's checkpoints
        timeline = Timeline()
        self.checkpoints = Checkpointing(
            self._slot, turn, self.channels, services, debugger=self.debugger, timeline=timeline
        )
        self._executions = Executions(
            self._slot, turn, self.checkpoints, self._activity, services, debugger=self.debugger, timeline=timeline
        )

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The session's state. A cell of a channel client takes no turn, but the session is busy while it runs."""
        state = self._slot.state
        return State.BUSY if state is State.IDLE and self.channels.running else state

    @property
    def incarnation(self) -> int:
        """Number of kernels that the session has had."""
        return self._slot.notice.incarnation

    @property
    def alive(self) -> bool:
        """Whether it has a running kernel."""
        return self._slot.alive

    @property
    def left_container(self) -> ContainerRecord | None:
        """The kernel that an earlier gateway has left. None means that there was none, or that it was taken over."""
        return self._slot.left_container

    @property
    def launch(self) -> Launch:
        """Order to start its next kernel, on the files of its earlier kernels."""
        return self._slot.launch

    @property
    def transcript(self) -> Transcript:
        """The cells that it has run."""
        return self._executions.transcript

    @property
    def runs(self) -> IdempotencyCache:
        """The executions that are found by their id: those with an idempotency key, and those nobody waits for."""
        return self._executions.runs

    def question(self, cell: Entry) -> Question | None:
        """Return what a cell of any client asks now with `input()`. None means that it asks nothing."""
        return self._executions.question(cell.id) or self.channels.question(cell.id)

    def answer(self, cell: int, number: int, text: str) -> bool:
        """Answer a question of a cell, whichever client has run the cell.

        Args:
            cell: number of the cell.
            number: number of the question among those of the cell, from 1.
            text: the answer.

        Returns:
            True if the cell waited for the answer to this question.

        Raises:
            ConnectionFailed: when the kernel accepts no messages.
        """
        found = self.transcript.kept().get(cell)
        if found is None:
            return False
        return self._executions.answer(found.id, number, text) or self.channels.answer(found.id, number, text)

    @property
    def executions(self) -> int:
        """Number of cells that it has run, of API clients and channel clients."""
        return self._executions.count

    @property
    def reachable(self) -> bool:
        """Whether its kernel takes messages: it neither sleeps nor is being written to disk."""
        return self._slot.reachable

    @property
    def sleep_image(self) -> SleepImage | None:
        """The memory of its kernel on disk. None means that the session does not sleep."""
        return self._slot.sleep_image

    @property
    def sleep_problem(self) -> str:
        """Why its last attempt to fall asleep failed, for its client; empty if it did not fail."""
        return self._slot.sleep_problem

    @property
    def can_sleep(self) -> bool:
        """Whether this gateway lets idle sessions sleep: it has proven that it can wake them."""
        return self._services.kernel_memory.ability.on

    def has_room_to_sleep(self, freed: int) -> bool:
        """Return whether there is room for its kernel's memory on disk, if its tenant frees these bytes before."""
        kernel = self._slot.kernel
        return kernel is None or self._services.kernel_memory.has_room(kernel, freed)

    @property
    def gives_way_since(self) -> float | None:
        """Time since which it sleeps although no client has asked for sleep, in seconds since 1970."""
        image = self.sleep_image
        return image.since if image is not None and self.spec.on_idle is OnIdle.AUTO else None

    @property
    def container(self) -> KernelHandle | None:
        """The container of its kernel. None means that it has no kernel."""
        return None if self._slot.kernel is None else self._slot.kernel.handle

    def idle_for(self) -> float:
        """Return the seconds since a client last used it. Returns 0 during a use."""
        return 0.0 if self.in_use else self._activity.idle_for()

    @property
    def in_use(self) -> bool:
        """Whether a cell runs or waits, or a file is being transferred."""
        return super().in_use or self.channels.running or self._executions.orphaned

    # -- its kernels ----------------------------------------------------------------------------------------

    def require_running(self) -> None:
        """Refuse the use of its kernel while its sandbox is paused; see `SlotListener`."""
        self._require_running()

    async def wake(self) -> None:
        """Wake its kernel, also while its sandbox is paused. The wait counts as a use by a client.

        Raises:
            SessionError: as in `KernelSlot.ensure`.
        """
        with self._activity.use():
            await self._slot.ensure(even_paused=True)

    async def pause(self) -> None:
        """Freeze its kernel, if there is one; see `Kernel.pause`."""
        if self._slot.kernel is not None:
            await self._slot.kernel.pause()

    async def resume(self) -> None:
        """Let its kernel continue, if there is one; see `Kernel.resume`."""
        if self._slot.kernel is not None:
            await self._slot.kernel.resume()

    async def ensure_container(self) -> KernelHandle:
        """Return the container of its kernel, and start a kernel if there is none."""
        return (await self._slot.ensure()).handle

    async def settled_kernel(self) -> Kernel:
        """Return its kernel, and start one if there is none. Wait until no interrupt of an earlier cell can reach it.

        The wait counts as a use of the session by a client.
        """
        with self._activity.use():
            return await self._executions.settled_kernel()

    async def variables(self) -> VariableList:
        """Return the variables of its kernel, also while a cell runs. A session that sleeps is woken.

        Raises:
            SessionError: as `list_variables`, or when the session was ended, or no kernel could be started.
        """
        with self._activity.use():
            return await list_variables(await self._slot.ensure())

    async def variable(self, name: str) -> VariableDetail:
        """Return one variable of its kernel with its content; see `variables`.

        Raises:
            SessionError: as `describe_variable`, or as in `variables`.
        """
        with self._activity.use():
            return await describe_variable(await self._slot.ensure(), name)

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return how the code before a cursor may go on, as its kernel knows it. A session that sleeps is woken.

        Raises:
            SessionError: as `complete`, or when a cell runs, the session was ended, or no kernel could be started.
        """
        with self._activity.use():
            kernel = await self._slot.ensure()
            if self.state is State.BUSY:
                raise InvalidRequest("a kernel completes no code while a cell runs", field="code")
            return await complete(kernel, code, cursor)

    async def post_mortem(self, frame: int) -> Seen:
        """Return the frames of the exception that has ended a cell, and the variables of one of them.

        Raises:
            SessionError: as `frames_of`, or when the session was ended, or no kernel could be started.
        """
        self.debugger.require()
        with self._activity.use():
            return await frames_of(await self._slot.ensure(), frame)

    async def evaluate_post_mortem(self, expression: str, frame: int, cell_timeout: float) -> Seen:
        """Run an expression in a frame of the exception that has ended a cell, as an execution.

        Raises:
            DebugRefused: when there is no such frame, or the expression fails.
            SessionError: as in `post_mortem`, or when the execution is refused.
        """
        seen = await self.post_mortem(frame)
        if seen.state is DebugState.NONE:
            raise DebugRefused("no cell is stopped, and no exception has ended one")
        request = ExecuteRequest(expression, timeout=cell_timeout, store_history=False, frame=frame)
        async with self.execute(request) as execution:
            value = value_of(expression, await execution.result())
        return replace(seen, value=value)

    async def take_over(self, handle: KernelHandle | None, note: str) -> None:
        """Continue with the kernel that an earlier gateway has left; see `KernelSlot.take_over`."""
        await self._executions.take_over(partial(self._slot.take_over, handle, note))

    def connected(self, kernel: Kernel, cause: SessionError) -> None:
        """Connect the channel clients to a new kernel."""
        self.channels.connect(kernel, cause)

    def changed(self, notice: StateNotice, returned_to: Checkpoint | None) -> None:
        """Tell the channel clients and the transcript what has become of the variables."""
        self.channels.change(notice)
        self._executions.transcript.change(notice, None if returned_to is None else returned_to.image.id)

    def received(self, message: Message) -> None:
        """Take a message of the kernel."""
        self.channels.dispatch(message)
        self.debugger.received(message)
        self._executions.received(message)

    def missed(self, kernel: Kernel) -> None:
        """Let the kernel's cells check whether their reply is lost: the kernel may have lost a message on shell."""
        self._executions.shell_lost(kernel)

    def disconnected(self, cause: SessionError) -> None:
        """Tell the channel clients that the kernel is gone. Start the next kernel if any of them are connected."""
        self.channels.disconnect(cause)
        if self.channels.clients:
            spawn(self._revive(), f"revive {self.key}")

    def fell_asleep(self) -> None:
        """Keep the channel clients for the kernel's return."""
        self.channels.detach()

    async def fall_asleep(self) -> str:
        """Write its kernel's memory to disk; see `KernelSlot.fall_asleep`."""
        return "it is in use" if self.in_use else await self._slot.fall_asleep()

    def returning(self, kernel: Kernel) -> None:
        """Let the executions of a kernel that has ended wait until `ended` is called."""
        self._executions.await_end(kernel)

    def ended(self, kernel: Kernel, cause: SessionError, after: StateNotice | None) -> None:
        """End the executions of a kernel that has ended."""
        self._executions.kernel_gone(kernel, cause, after)

    async def _revive(self) -> None:
        """Start the next kernel for the connected channel clients, and tell them. They never ask for a kernel."""
        self.channels.announce("restarting")
        try:
            await self._slot.ensure()
        except SessionError:
            self.channels.announce("dead")
            raise
        self.channels.announce("idle")

    def _begin_channel_cell(self, request: ExecuteRequest) -> str:
        return self._executions.begin_channel_cell(request)

    def _failed(self, msg_id: str, failure: Mapping[str, Any] | None, error: SessionError | None) -> None:
        self._executions.failed(msg_id, failure, error)

    # -- what clients do ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def execute(self, request: ExecuteRequest, seen: int | None = None) -> AsyncIterator[Running]:
        """Run a cell when its turn comes. If the context ends early, the cell is interrupted and the variables stay.

        A request with an idempotency key runs once, to its end. A client that sends the key again gets its events. A
        debugged cell always has a key.

        Args:
            request: cell to run.
            seen: number of the last event that a returning client has seen. No cell is started then. None means a new
                request.

        Raises:
            InvalidRequest: when the language takes no arguments, or the key is unknown or belongs to another request.
            SessionNotFound: when the variables that the cell needs (`if_session`, `if_incarnation`) are gone.
            SessionError: when the session was ended, no kernel could be started, or a quota is used up.
        """
        self._admit(request)
        if request.debug is not None and seen is None:
            request = await self.debugger.begin(request)
        async with self._executions.run(request, seen) as running:
            yield running

    async def submit(self, request: ExecuteRequest) -> Run:
        """Run a cell when its turn comes, without a client that waits for it. It is found by its id in `runs`.

        Args:
            request: cell to run. If it has no idempotency key, it gets one.

        Raises:
            SessionError: as in `execute`, if that is known at once. Later, the run has the error.
        """
        self._admit(request)
        return await self._executions.submit(request)

    def _admit(self, request: ExecuteRequest) -> None:
        if self.closed:
            raise SessionClosed
        if request.if_session not in (None, self.id):
            raise SessionNotFound(f"session {self.key.name!r} is another one now", session=self.key.name, id=self.id)

    async def interrupt(self) -> bool:
        """Interrupt the running cell and keep the variables; return whether one was running."""
        self.touch()
        interrupted = self._executions.interrupt()
        return self.channels.interrupt() or interrupted

    async def restart(self) -> None:
        """Give the session a fresh kernel on the same workspace. A running cell ends with the old kernel.

        Raises:
            SessionError: when the session was ended, or no kernel could be started; the session keeps its kernel.
        """
        with self._activity.use(), self.channels.replacing():
            await self._slot.restart()

    # -- the end --------------------------------------------------------------------------------------------

    def _refuse(self, reason: str) -> None:
        self.clients_must_leave.set()
        self.channels.close(SessionClosed(reason))
        self._executions.close()

    async def _free(self, reason: str) -> None:
        try:
            await self._slot.free(SessionClosed(reason))
        finally:
            self._executions.free()

    def release_cells(self) -> None:
        """Let the running cells go on without this gateway: the next one waits for their end.

        A client that waits for such a cell gets `CellRunsOn`. Cells that wait for their turn get `ShuttingDown`.
        """
        self.channels.release_cells()
        self._executions.release()

    def leave(self) -> None:
        """Disconnect from clients and kernel: another gateway continues with the session."""
        self.clients_must_leave.set()
        self.channels.release_clients()
        if self._slot.kernel is not None:
            self._slot.kernel.connection.close()
