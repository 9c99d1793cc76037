"""The executions of one session: each runs in turn, ends exactly once, and is audited."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from sessions.cells.environment import CellEnvironment
from sessions.cells.execution import Execution, Question
from sessions.cells.idempotency import Attempt, IdempotencyCache, Run
from sessions.cells.orphan import OrphanCell
from sessions.cells.timeline import Timeline
from sessions.cells.transcript import Transcript
from sessions.debugging.debugger import Debugger
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import CellRunsOn, InvalidRequest, SessionError, SessionNotFound
from sessions.model.tasks import set_within, shielded, spawn
from sessions.model.values import ExecuteRequest, StateChange, StateNotice
from sessions.session.checkpointing import Checkpointing
from sessions.session.kernel_slot import KernelSlot
from sessions.session.owner import Activity
from sessions.session.services import SessionServices
from sessions.session.states import State
from sessions.session.turn import Turn

#: what the next reply says of a cell that stood at a breakpoint when the gateway was killed
STOOD = "the cell stood at a breakpoint and was interrupted"
#: a cell under way, as its client sees it
Running = Execution | Attempt


class Executions:
    """Runs the cells of one session's API clients, one after the other."""

    def __init__(
        self,
        slot: KernelSlot,
        turn: Turn,
        checkpoints: Checkpointing,
        activity: Activity,
        services: SessionServices,
        *,
        debugger: Debugger,
        timeline: Timeline,
    ) -> None:
        """Begin without executions.

        Args:
            slot: the session's kernel.
            turn: gives the kernel to one user at a time.
            checkpoints: the session's checkpoints, which may be taken before each cell.
            activity: the session's activity.
            services: services that sessions share.
            debugger: attaches to the kernel before a debugged cell, and detaches after it.
            timeline: knows which cells a return to a checkpoint has undone.
        """
        output = slot.identity.spec.limits.output
        tenant = slot.key.tenant
        self.transcript = Transcript(output, kept=services.kept, tenant=tenant, timeline=timeline)
        self.transcript.change(slot.notice)
        #: number of cells that the session has run, of API clients and channel clients
        self.count = 0
        self._slot = slot
        self._activity = activity
        self._services = services
        self._turn = turn
        self._checkpoints = checkpoints
        self._debugger = debugger
        self._running: dict[str, Execution] = {}
        self._orphan: OrphanCell | None = None
        self._environment = CellEnvironment(slot.identity.kernelspec, slot.identity.spec.env)
        #: the runs with an idempotency key
        self.runs = IdempotencyCache(
            output, services.ledger.idempotency_keys(slot.key), services.kept, tenant, services.ledger.clock
        )

    @property
    def orphaned(self) -> bool:
        """Whether the kernel may run a cell without a client, one of an earlier gateway or for the next gateway."""
        return self._orphan is not None or self._turn.closed

    # -- what the kernel sends ------------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        """Take a message of the kernel."""
        if self._orphan is not None and message.channel == "iopub":
            self._orphan.claim(message)
        execution = self._running.get(message.parent_id)
        shown = message.channel == "iopub" and not (execution is not None and execution.is_answer(message))
        event = self.transcript.record(message) if shown else None
        if execution is not None:
            execution.handle(message, event)

    def shell_lost(self, kernel: Kernel) -> None:
        """Let the kernel's cells check whether their reply is lost: the kernel may have lost a message on shell."""
        for execution in self._on(kernel):
            execution.shell_lost()

    def await_end(self, kernel: Kernel) -> None:
        """Let the executions of a kernel that has ended wait for `kernel_gone`."""
        for execution in self._on(kernel):
            execution.await_end()

    def kernel_gone(self, kernel: Kernel, cause: SessionError, after: StateNotice | None) -> None:
        """End the executions of a kernel that has ended.

        Args:
            kernel: the kernel.
            cause: why it has ended.
            after: state of the variables after a return to a checkpoint. None means that the variables are lost.
        """
        for execution in self._on(kernel):
            execution.kernel_gone(cause, after)
        self.transcript.end_all()

    def _on(self, kernel: Kernel) -> list[Execution]:
        return [execution for execution in self._running.values() if execution.kernel is kernel]

    # -- running --------------------------------------------------------------------------------------------

    def begin_channel_cell(self, request: ExecuteRequest) -> str:
        """Record in the audit that a channel client's cell begins. Afterwards the session is no longer new.

        Returns:
            the execution's id.

        Raises:
            SessionError: when the cell must not run.
        """
        execution_id = self._audit_begin(request)
        try:
            self._checkpoints.mark_outdated()
        except SessionError:
            self._services.journal.ended(self._slot.key, execution_id, request, None)
            raise
        if self._slot.notice.change is StateChange.NEW:
            self._report_preserved()
        return execution_id

    def failed(self, msg_id: str, failure: Mapping[str, Any] | None, error: SessionError | None) -> None:
        """Show in the transcript why a channel client's cell has failed; see `Rules.failed`."""
        if (cell := self.transcript.find(msg_id)) is not None:
            self.transcript.end(cell, failure, error=error)

    def _report_preserved(self) -> None:
        """Have later cells report that the variables are preserved."""
        first = self._slot.notice.change is StateChange.NEW
        self._slot.announce(StateChange.PRESERVED, None)
        if first:  # recorded at once: if this gateway is killed, the next gateway must not report "new"
            self._slot.record_reported()

    def _audit_begin(self, request: ExecuteRequest) -> str:
        execution_id = self._services.journal.begins(self._slot.key, self._slot.identity.kernelspec.name, request)
        self.count += 1
        return execution_id

    @asynccontextmanager
    async def run(self, request: ExecuteRequest, seen: int | None) -> AsyncIterator[Running]:
        """Run a cell when its turn comes; see `Session.execute`.

        Args:
            request: cell to run.
            seen: the number of the last event that a returning client has seen.
        """
        program = self._program(request)
        if request.idempotency_key is not None:
            self._activity.touch()
            attempt = self.runs.attempt(request.idempotency_key, program, self._run, seen)
            with attempt.read():
                yield attempt
            return
        if seen is not None:
            raise InvalidRequest("only a cell with an idempotency_key can be resumed", field="last_event_id")
        async with self._run(program) as execution:
            yield execution

    async def submit(self, request: ExecuteRequest) -> Run:
        """Run a cell that no client waits for; see `Session.submit`."""
        key = request.idempotency_key or secrets.token_hex(16)
        self._activity.touch()
        return await self.runs.submit(key, self._program(replace(request, idempotency_key=key)), self._run)

    def _program(self, request: ExecuteRequest) -> ExecuteRequest:
        """Return the request with the call of `main` that its arguments ask for.

        Raises:
            InvalidRequest: when the session's language has no `main`, or cannot call tools.
        """
        spec = self._slot.identity.kernelspec
        if request.tools and not spec.tools:
            raise spec.cannot("tools", "call tools from its cells")
        code = request.code  # with a `source`, the code is complete: it calls `main` itself
        if request.source is None:
            code = spec.code_with_call(code, request.arguments)
        return replace(request, code=code, source=request.client_code)

    @asynccontextmanager
    async def _run(self, request: ExecuteRequest) -> AsyncIterator[Execution]:
        async with AsyncExitStack() as held:
            held.enter_context(self._activity.use())
            await held.enter_async_context(self._services.quotas.execution(self._slot.key.tenant))
            # The deadline of a cell that did not wait for channel clients would include, and interrupt, their cells.
            await held.enter_async_context(self._turn.taken())
            await self._checkpoints.before_cell()
            kernel = await self.settled_kernel()
            await self._debugger.attach(kernel, request)
            try:
                execution, execution_id = self._begin(kernel, request)
            except SessionError:
                await self._debugger.detach(request)
                raise
            ending = spawn(self._finish(execution, execution_id, held.pop_all()), "end of execution")
            self._checkpoints.after_cell()
        try:
            yield execution
        finally:
            execution.client_left.set()
            if not execution.ended.is_set():
                await shielded(spawn(execution.leave(), "leave execution"))
            await shielded(ending)

    async def settled_kernel(self) -> Kernel:
        """Return the kernel. Wait until no interrupt of an earlier cell can reach it any more."""
        while (kernel := await self._slot.ensure()).interrupts.under_way:
            await kernel.interrupts.settle()
        return kernel

    def _begin(self, kernel: Kernel, request: ExecuteRequest) -> tuple[Execution, str]:
        notice = self._slot.notice
        # With the first kernel, the lost variables are those of an earlier session with this name.
        if request.if_session is not None and notice.replaced is not None and notice.incarnation > 1:
            raise SessionNotFound(f"the session's variables are gone: {notice.replaced}", session=self._slot.key.name)
        if request.if_incarnation not in (None, notice.incarnation):
            raise SessionNotFound(
                f"kernel {request.if_incarnation} of the session is gone, and its variables with it",
                session=self._slot.key.name,
                incarnation=notice.incarnation,
            )
        execution_id = self._audit_begin(request)
        execution = Execution(
            kernel,
            self.transcript,
            request,
            notice=notice,
            timeouts=self._services.timeouts,
            servers=self._services.servers_for(self._slot.key, execution_id),
        )
        try:
            if request.idempotency_key is not None:
                self.runs.sends(request.idempotency_key)
            self._environment.set(kernel, request.env)
            execution.send()
        except SessionError:
            self._services.journal.ended(self._slot.key, execution_id, request, None)
            raise
        self._report_preserved()
        self._running[execution.id] = execution
        self._slot.move(State.BUSY)
        return execution, execution_id

    async def _finish(self, execution: Execution, execution_id: str, held: AsyncExitStack) -> None:
        """Release the turn when the cell has ended, even if its client leaves earlier or does not leave."""
        async with held:
            try:
                result = await execution.result()
            except CellRunsOn:
                await set_within(execution.client_left, self._services.timeouts.answer)
                del self._running[execution.id]
                self._services.journal.left(execution_id)
                return
            # The client gets its answer before the slower record is written.
            await set_within(execution.client_left, self._services.timeouts.answer)
            await self._environment.reset(execution.kernel, execution.request.env)
            await self._debugger.detach(execution.request)
            del self._running[execution.id]
            self._slot.become_idle()
            if result.state not in {StateChange.PRESERVED, StateChange.NEW} and execution.kernel is self._slot.kernel:
                self._slot.record_reported()
            self._services.journal.ended(self._slot.key, execution_id, execution.request, result)

    def question(self, msg_id: str) -> Question | None:
        """Return what a cell asks now. None means that it asks nothing, or is no cell of an API client."""
        execution = self._running.get(msg_id)
        return None if execution is None else execution.question

    def answer(self, msg_id: str, number: int, text: str) -> bool:
        """Answer a question of a cell; see `Session.answer`."""
        execution = self._running.get(msg_id)
        if execution is None or execution.question is None or execution.question.number != number:
            return False
        runs = (run for run in self.runs.newest_first() if isinstance(run, Run) and run.execution is execution)
        return next(runs, execution).answer(text)  # a run remembers that its question is answered

    def interrupt(self) -> bool:
        """Interrupt the running cell and keep the variables; return whether one was running."""
        running: list[Execution | OrphanCell] = [*self._running.values()]
        if self._orphan is not None:
            running.append(self._orphan)
        for cell in running:
            spawn(cell.interrupt(), "interrupt")
        return bool(running)

    # -- beginning and end ----------------------------------------------------------------------------------

    def release(self) -> None:
        """Let the running cell go on without this gateway, and refuse the cells that wait."""
        self._turn.close()
        self._orphan = None
        for execution in self._running.values():
            execution.release()

    async def take_over(self, take: Callable[[], Awaitable[Kernel | None]]) -> None:
        """Hold the turn until a kernel of an earlier gateway is taken over, and the cell that it may run has ended.

        Args:
            take: takes over and returns the kernel. It returns None if there is no kernel to continue with.
        """
        async with AsyncExitStack() as turn:
            # An execution that holds the turn now fails, because there is no kernel yet.
            await turn.enter_async_context(self._turn.lock)
            kernel = await take()
            if kernel is None:
                return
            self._slot.move(State.BUSY)
            self._orphan = OrphanCell(kernel, self.transcript, self._services.timeouts)
            spawn(self._await_orphan(self._orphan, turn.pop_all()), f"settle {self._slot.key}")

    async def _await_orphan(self, orphan: OrphanCell, turn: AsyncExitStack) -> None:
        """Wait for the end of the cell that the kernel may be running."""
        async with turn:
            try:
                async with self._debugger.taking_over(orphan.kernel) as stands:
                    if stands:  # nobody could go on with it
                        self._slot.announce(self._slot.notice.change, f"{self._slot.notice.reason}; {STOOD}")
                        spawn(orphan.interrupt(), "interrupt")
                    await orphan.end(self._slot.identity.spec.max_execute_timeout)
            finally:
                self._orphan = None
                self._activity.touch()
                self._slot.become_idle()

    def close(self) -> None:
        """Forget the idempotency keys: from now on they belong to the next session with this name."""
        self.runs.close()

    def free(self) -> None:
        """Free the transcript at once: the session is in a reference cycle, and garbage is seldom collected."""
        self.transcript.close()
        self.transcript = Transcript(0)
