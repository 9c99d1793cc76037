"""A kernel with a name: its states, its turns, what its clients may count on.

The session is where a kernel's messages meet what was asked of it. It knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from sessions.activity import Activity
from sessions.backends.base import KernelHandle
from sessions.channels import Channels
from sessions.errors import InvalidRequest, SessionClosed, SessionError
from sessions.execution import Execution, Standing
from sessions.kernel import Kernel
from sessions.kernelspecs import KernelSpec
from sessions.ledger import Place, SessionRecord
from sessions.messages import Message
from sessions.models import ExecuteRequest, Limits, SessionKey, SessionSpec, StateChange
from sessions.orphan import Orphan
from sessions.requests import Rules
from sessions.retries import Attempt, Retries
from sessions.seat import NO_NEWS, Seat
from sessions.states import State
from sessions.surroundings import Surroundings
from sessions.tasks import spawn, to_the_end
from sessions.transcript import Transcript

#: a cell on its way: its events, its end, answers to its questions
Running = Execution | Attempt


class Session:
    """One tenant's named kernel."""

    def __init__(
        self,
        key: SessionKey,
        spec: SessionSpec,
        kernelspec: KernelSpec,
        around: Surroundings,
        record: SessionRecord | None = None,
    ) -> None:
        """Make a session that has no kernel yet.

        Args:
            key: whose, and which.
            spec: how it is to be made.
            kernelspec: of its language.
            around: what it shares with the others.
            record: what an earlier gateway has left of it; its kernel is waited for, see `take_over`.
        """
        self.key = key
        self.spec = spec
        self.kernelspec = kernelspec
        self.transcript = Transcript(spec.limits.output)
        self._around = around
        self._seat = Seat(key, spec, kernelspec, around, record)
        self._seat.occupant = self
        age = around.ledger.clock() - record.created_at if record else 0.0
        self._activity = Activity(around.clock, max(0.0, age))
        self._orphan: Orphan | None = None
        self._ending: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._restarting = asyncio.Lock()
        self._executions: dict[str, Execution] = {}
        self._retries = Retries(spec.limits.output, around.ledger.asked(key))
        #: how many cells it has run, whichever client they came from
        self.executions = 0
        #: clients with messages of their own
        self.channels = Channels(
            Rules(
                lambda: around.quotas.execution_now(key.tenant),
                lambda: around.quotas.permit(key.tenant),
                self._begins,
                partial(around.witness.ended, key),
                around.patience,
                spec.max_execute_timeout,
            )
        )

    @property
    def limits(self) -> Limits:
        """What its kernels may use."""
        return self.spec.limits

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What it is doing."""
        return self._seat.state

    @property
    def doing(self) -> State:
        """Its state as clients are told: cells of clients with messages of their own take no turn, and keep it busy."""
        return State.BUSY if self.state is State.IDLE and self.channels.running else self.state

    @property
    def incarnation(self) -> int:
        """How many kernels it has had."""
        return self._seat.incarnation

    @property
    def alive(self) -> bool:
        """Whether it has a kernel that runs."""
        return self._seat.alive

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self._seat.closed

    @property
    def left_at(self) -> Place | None:
        """Where an earlier gateway has left its kernel; None: nowhere, or it was taken over."""
        return self._seat.left_at

    @property
    def created_at(self) -> float:
        """When it was made, in seconds since 1970."""
        return self._seat.created_at

    def memory(self) -> int | None:
        """Bytes that its kernel uses now; None: it has none, or nobody can tell."""
        return None if self._seat.kernel is None else self._seat.kernel.handle.memory()

    def touch(self) -> None:
        """Note that a client has used it."""
        self._activity.touch()

    def charge_upload(self, size: int) -> None:
        """Count bytes of a file that is sent to it; see `Quotas.charge_upload`."""
        self._around.quotas.charge_upload(self.key.tenant, size)

    def age(self) -> float:
        """Seconds since it was made."""
        return self._activity.age()

    def idle_for(self) -> float:
        """Seconds since a client last used it; 0 while one does."""
        return 0.0 if self.in_use else self._activity.idle_for()

    @property
    def in_use(self) -> bool:
        """Whether a cell runs or waits, or a file is on its way."""
        return self._activity.users > 0 or self.channels.running or self._orphan is not None

    def announce(self, change: StateChange, reason: str | None) -> None:
        """Tell the next execution, once, what became of the variables."""
        self._seat.news = (change, reason)

    # -- kernel ---------------------------------------------------------------------------------------------

    async def ensure_kernel(self) -> Kernel:
        """Its kernel, started if there is none; see `Seat.ensure`. A client that waits for it uses the session."""
        with self._activity.use():
            return await self._seat.ensure()

    async def settled_kernel(self) -> Kernel:
        """Its kernel, for the next cell: no interrupt is on its way that was meant for an earlier one."""
        while (kernel := await self.ensure_kernel()).interrupting:
            await kernel.settle()
        return kernel

    async def take_over(self, handle: KernelHandle | None, note: str) -> None:
        """Go on with the kernel that an earlier gateway has left; see `Seat.take_over`."""
        await self._turn.acquire()  # whoever has it is being told that there is no kernel yet
        kernel = await self._seat.take_over(handle, note)
        if kernel is None:
            self._turn.release()
            return
        self._seat.move(State.BUSY)
        self._orphan = Orphan(kernel, self.transcript, self._around.patience)
        spawn(self._settle(self._orphan), f"settle {self.key}")

    async def _settle(self, orphan: Orphan) -> None:
        """Let the cell end that the kernel may be running."""
        try:
            await orphan.end(self.spec.max_execute_timeout)
        finally:
            self._orphan = None
            self.touch()
            self._seat.rest()
            self._turn.release()

    def connected(self, kernel: Kernel) -> None:
        """There is a kernel, in place of the one there was."""
        self.channels.connect(kernel)

    def disconnected(self, cause: SessionError) -> None:
        """There is no kernel any more; clients that are there get the next one."""
        self.channels.disconnect(cause)
        if self.channels.clients:
            spawn(self._revive(), f"revive {self.key}")

    def ended(self, kernel: Kernel, cause: SessionError) -> None:
        """A kernel has ended, and with it its cells."""
        for execution in list(self._executions.values()):
            if execution.kernel is kernel:
                execution.kernel_gone(cause)

    async def _revive(self) -> None:
        """Give clients that are there the next kernel, and tell them: they do not ask for one."""
        self.channels.announce("restarting")
        try:
            await self._seat.ensure()  # for clients that are only connected
        except SessionError:
            self.channels.announce("dead")
            raise
        self.channels.announce("idle")

    def received(self, message: Message) -> None:
        """The kernel has sent something."""
        self.channels.feed(message)
        if self._orphan is not None and message.channel == "iopub":
            self._orphan.claim(message)
        event = self.transcript.feed(message) if message.channel == "iopub" else None
        execution = self._executions.get(message.parent_id)
        if execution is not None:
            execution.feed(message, event)

    def missed(self, kernel: Kernel) -> None:
        """Something that a kernel sent on shell was lost."""
        for execution in self._executions.values():
            if execution.kernel is kernel:
                spawn(execution.do_without_reply(), "wait for what was lost")

    # -- what clients do ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def execute(self, request: ExecuteRequest, seen: int | None = None) -> AsyncIterator[Running]:
        """Run a cell when it is its turn. Leaving the context early interrupts the cell and keeps the variables.

        A request with an idempotency key is run once, to its end: leaving early only leaves, and who comes again
        with the key gets the events and the result.

        Args:
            request: what to run.
            seen: the number of the last event that a client has seen who comes back; nothing is run then.

        Raises:
            InvalidRequest: the language takes no arguments, the key was given to another request, or there is nothing
                to come back for.
            QuotaExceeded: the tenant has too many executions under way, or has used up what it may.
            SessionClosed: the session was ended.
            SessionError: no kernel could be started.
        """
        if self.closed:
            raise SessionClosed
        code = request.code  # which calls `main` itself when it is more than was written
        if request.source is None:
            code = self.kernelspec.program(code, request.arguments)
        program = replace(request, code=code, source=request.written)
        if request.idempotency_key is not None:
            self.touch()
            yield self._retries.attempt(request.idempotency_key, program, self._run, seen)
            return
        if seen is not None:
            raise InvalidRequest("only a cell with an idempotency_key can be picked up", field="last_event_id")
        async with self._run(program) as execution:
            yield execution

    @asynccontextmanager
    async def _run(self, request: ExecuteRequest) -> AsyncIterator[Execution]:
        async with AsyncExitStack() as held:
            held.enter_context(self._activity.use())
            await held.enter_async_context(self._around.quotas.execution(self.key.tenant))
            await held.enter_async_context(self._turn)
            await self.channels.quiet()  # or our deadline would count, and interrupt, what runs before it
            execution, known_as = self._begin(await self.settled_kernel(), request)
            ending = spawn(self._see_off(execution, known_as, held.pop_all()), "end of execution")
        try:
            yield execution
        finally:
            if execution.status is None:
                await to_the_end(spawn(execution.leave(), "leave execution"))
            await to_the_end(ending)

    def _begin(self, kernel: Kernel, request: ExecuteRequest) -> tuple[Execution, str]:
        standing = Standing(*self._seat.news, self.incarnation)
        known_as = self._begins(request)
        try:
            execution = Execution(kernel, self.transcript, request, standing, self._around.patience)
        except SessionError:
            self._around.witness.ended(self.key, known_as, request, None)
            raise
        self._seat.news = NO_NEWS
        self._executions[execution.id] = execution
        self._seat.move(State.BUSY)
        return execution, known_as

    def _begins(self, request: ExecuteRequest) -> str:
        known_as = self._around.witness.begins(self.key, self.kernelspec.name, request)
        self.executions += 1
        return known_as

    async def _see_off(self, execution: Execution, known_as: str, held: AsyncExitStack) -> None:
        """Give the turn on when the cell has ended: not before, whoever loses patience, and not when all is read."""
        async with held:
            result = await execution.result()
            del self._executions[execution.id]
            self._seat.rest()
            if result.state is not StateChange.PRESERVED:
                self._seat.told(execution.kernel)
            self._around.witness.ended(self.key, known_as, execution.request, result)

    async def interrupt(self) -> bool:
        """Interrupt the running cell and keep the variables.

        Returns:
            whether one was running.
        """
        self.touch()
        running: list[Execution | Orphan] = [*self._executions.values()]
        if self._orphan is not None:
            running.append(self._orphan)
        for execution in running:
            spawn(execution.interrupt(), "interrupt")
        return self.channels.interrupt() or bool(running)

    async def restart(self) -> None:
        """Give the session a fresh kernel on the same workspace. A running cell ends with it.

        Raises:
            SessionClosed: the session was ended.
            SessionError: no kernel could be started; the session keeps the one it has.
        """
        news = (StateChange.RESTARTED, "a restart was asked for")
        with self._activity.use():
            async with self._restarting:
                if self.alive and not self.closed:
                    # The new one first: a workspace in memory lives as long as somebody uses it.
                    # Not "restarting": front ends take that for a kernel that died, and tell their user so.
                    self.channels.announce("starting")
                    try:
                        await self._seat.replace(news)
                    finally:
                        self.channels.announce("idle")
                else:
                    await self._seat.ensure()
                    self.announce(*news)

    def close(self, reason: str = "the session was ended") -> asyncio.Future[None]:
        """End the session and free all it has. Idempotent; it can no longer be used when this returns.

        Returns:
            what to await until all is freed, also for whoever comes second; who gives up waiting does not stop it.
        """
        if self._ending is None:
            self._seat.move(State.CLOSED)
            self.channels.close(SessionClosed(reason))
            self._retries.close()  # now: the keys are those of the next session of this name
            self._ending = spawn(self._free(SessionClosed(reason)), f"end {self.key}")
        return asyncio.shield(self._ending)

    async def _free(self, cause: SessionClosed) -> None:
        try:
            await self._seat.free(cause)
        finally:
            # The session is in a ring of references, and a gateway at rest seldom looks for those.
            self.transcript = Transcript(0)

    def leave(self) -> None:
        """Let go of clients and kernel: another gateway goes on with the session."""
        self.channels.part()
        if self._seat.kernel is not None:
            self._seat.kernel.connection.close()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools beside the kernel; see `KernelHandle.run_tool`."""
        with self._activity.use():
            kernel = await self.ensure_kernel()
            async with aclosing(kernel.handle.run_tool(name, argument, stdin)) as output:
                async for piece in output:
                    yield piece
