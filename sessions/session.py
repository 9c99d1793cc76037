"""A kernel with a name: its states, its turns, what its clients may count on.

The session is where a kernel's messages meet what was asked of it. It knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from sessions.activity import Activity
from sessions.backends.base import Launch
from sessions.channels import Channels
from sessions.errors import KernelDied, SessionClosed, SessionError
from sessions.execution import Execution, Standing
from sessions.kernel import Kernel
from sessions.kernelspecs import KernelSpec
from sessions.messages import Message
from sessions.models import ExecuteRequest, Limits, SessionKey, SessionSpec, StateChange
from sessions.requests import Rules
from sessions.retries import Attempt, Retries
from sessions.states import MOVES, State
from sessions.surroundings import Surroundings
from sessions.tasks import spawn, to_the_end
from sessions.transcript import Transcript

#: what became of the variables, and why
News = tuple[StateChange, str | None]
NO_NEWS: News = (StateChange.PRESERVED, None)


#: a cell on its way: its events, its end, answers to its questions
Running = Execution | Attempt


class Session:
    """One tenant's named kernel."""

    def __init__(self, key: SessionKey, spec: SessionSpec, kernelspec: KernelSpec, around: Surroundings) -> None:
        self.key = key
        self.spec = spec
        self.kernelspec = kernelspec
        self.state = State.STARTING
        self.incarnation = 0
        self.transcript = Transcript(spec.limits.output)
        self._activity = Activity(around.clock)
        self._around = around
        self._launch = Launch(
            kernelspec, spec.limits, spec.env, spec.workspace, spec.cwd, shared=spec.workspace is not None
        )
        self._kernel: Kernel | None = None
        self._mourner: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[Kernel] | None = None
        self._turn = asyncio.Lock()
        self._restarting = asyncio.Lock()
        self._executions: dict[str, Execution] = {}
        self._retries = Retries()
        #: clients with messages of their own
        self.channels = Channels(
            Rules(
                lambda: around.quotas.execution(key.tenant),
                partial(around.observe, key),
                around.patience,
                spec.max_execute_timeout,
            )
        )
        #: what the next execution is told of the variables
        self._news = NO_NEWS

    @property
    def limits(self) -> Limits:
        """What its kernels may use."""
        return self.spec.limits

    # -- state ----------------------------------------------------------------------------------------------

    def _move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise RuntimeError(f"session {self.key} cannot go from {self.state} to {state}")
        self.state = state

    @property
    def alive(self) -> bool:
        """Whether it has a kernel that runs."""
        return self._kernel is not None and self._kernel.alive

    @property
    def doing(self) -> State:
        """Its state as clients are told: cells of clients with messages of their own take no turn, and keep it busy."""
        return State.BUSY if self.state is State.IDLE and self.channels.running else self.state

    def touch(self) -> None:
        """Note that a client has used it."""
        self._activity.touch()

    def age(self) -> float:
        """Seconds since it was made."""
        return self._activity.age()

    def idle_for(self) -> float:
        """Seconds since a client last used it; 0 while one does."""
        return 0.0 if self.in_use else self._activity.idle_for()

    @property
    def in_use(self) -> bool:
        """Whether a cell runs or waits, or a file is on its way."""
        return self._activity.users > 0 or self.channels.running

    def announce(self, change: StateChange, reason: str | None) -> None:
        """Tell the next execution, once, what became of the variables."""
        self._news = (change, reason)

    # -- kernel ---------------------------------------------------------------------------------------------

    async def ensure_kernel(self) -> Kernel:
        """The session's kernel, started if there is none. Concurrent callers get the same one.

        Raises:
            SessionClosed: the session was ended.
            SessionError: no kernel could be started.
        """
        if self.state is State.CLOSED:
            raise SessionClosed
        if self._kernel is not None:
            if self._kernel.alive:
                return self._kernel
            if self._mourner is not None:  # it ended this very moment, and what follows from that comes first
                await asyncio.shield(self._mourner)
                return await self.ensure_kernel()
        if self._starting is None and self.state is not State.STARTING:
            self._move(State.STARTING)
        return await self._fresh_kernel(None)

    async def _fresh_kernel(self, news: News | None) -> Kernel:
        """The kernel that is being started; one is started when none is."""
        if self._starting is None:
            self._starting = spawn(self._start(news), f"start {self.key}")
        # The start goes on for the others when one of its callers leaves.
        return await asyncio.shield(self._starting)

    async def _start(self, news: News | None) -> Kernel:
        try:
            return await self._acquire(news)
        except BaseException:
            if self.state is State.STARTING:
                self._move(State.DEAD)
            raise
        finally:
            self._starting = None

    async def _acquire(self, news: News | None) -> Kernel:
        kernel = await self._around.kernels.acquire(self._launch)
        self._launch = kernel.launch  # its workspace is the session's, even if the session has ended meanwhile
        if self.state is State.CLOSED:
            await kernel.kill(SessionClosed())
            raise SessionClosed
        old = self._kernel
        self._adopt(kernel)
        if news is not None:
            self.announce(*news)
        if old is not None:
            await old.kill(KernelDied("the session was restarted while the cell ran"))
        return kernel

    def _adopt(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.incarnation += 1
        self.channels.connect(kernel)
        kernel.connection.on_message = self._on_message
        kernel.connection.on_loss = lambda: self._on_loss(kernel)
        self._mourner = spawn(self._mourn(kernel), f"watch kernel of {self.key}")
        if self.state is State.DEAD:  # the kernel that this one replaces ended while it started
            self._move(State.STARTING)
        if self.state is State.STARTING:
            self._move(State.IDLE)

    async def _mourn(self, kernel: Kernel) -> None:
        cause = await kernel.wait()
        kernel.connection.on_message = lambda _message: None
        if kernel is self._kernel and self.state is not State.CLOSED:
            self._kernel = None
            self._move(State.DEAD)
            self.announce(StateChange.LOST, cause.message)
            self.channels.disconnect(cause)
            if self.channels.clients:
                spawn(self._revive(), f"revive {self.key}")
        for execution in list(self._executions.values()):
            if execution.kernel is kernel:
                execution.kernel_gone(cause)

    async def _revive(self) -> None:
        """Give clients that are there the next kernel, and tell them: they do not ask for one."""
        self.channels.announce("restarting")
        try:
            await self.ensure_kernel()
        except SessionError:
            self.channels.announce("dead")
            raise
        self.channels.announce("idle")

    def _on_message(self, message: Message) -> None:
        self.channels.feed(message)
        event = self.transcript.feed(message) if message.channel == "iopub" else None
        execution = self._executions.get(message.parent_id)
        if execution is not None:
            execution.feed(message, event)

    def _on_loss(self, kernel: Kernel) -> None:
        for execution in self._executions.values():
            if execution.kernel is kernel:
                spawn(execution.do_without_reply(), "wait for what was lost")

    # -- what clients do ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def execute(self, request: ExecuteRequest) -> AsyncIterator[Running]:
        """Run a cell when it is its turn. Leaving the context early interrupts the cell and keeps the variables.

        A request with an idempotency key is run once, to its end: leaving early only leaves, and who comes again
        with the key gets the result.

        Raises:
            InvalidRequest: the language takes no arguments, or the key was given to another request.
            QuotaExceeded: the tenant has too many executions under way.
            SessionClosed: the session was ended.
            SessionError: no kernel could be started.
        """
        program = replace(request, code=self.kernelspec.program(request.code, request.arguments), arguments=None)
        if request.idempotency_key is not None:
            self.touch()
            yield self._retries.attempt(request.idempotency_key, program, self._run)
            return
        async with self._run(program) as execution:
            yield execution

    @asynccontextmanager
    async def _run(self, request: ExecuteRequest) -> AsyncIterator[Execution]:
        with self._around.quotas.execution(self.key.tenant), self._activity.use():
            async with self._turn:
                await self.channels.quiet()  # or our deadline would count, and interrupt, what runs before it
                kernel = await self.ensure_kernel()
                standing = Standing(*self._news, self.incarnation)
                execution = Execution(kernel, self.transcript, request, standing, self._around.patience)
                self._news = NO_NEWS
                async with self._in_flight(execution):
                    yield execution

    @asynccontextmanager
    async def _in_flight(self, execution: Execution) -> AsyncIterator[None]:
        self._executions[execution.id] = execution
        self._move(State.BUSY)
        try:
            yield
        finally:
            # The turn is not given on before the cell has ended, whoever loses patience.
            await to_the_end(spawn(self._out_of_flight(execution), "end of execution"))

    async def _out_of_flight(self, execution: Execution) -> None:
        result = await execution.leave()
        del self._executions[execution.id]
        if self.state is State.BUSY:
            self._move(State.IDLE)
        self._around.observe(self.key, execution.request, result)

    async def interrupt(self) -> bool:
        """Interrupt the running cell and keep the variables.

        Returns:
            whether one was running.
        """
        self.touch()
        running = list(self._executions.values())
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
        async with self._restarting:
            self.touch()
            if self._kernel is not None and self._kernel.alive and self.state is not State.CLOSED:
                # The new one first: a workspace in memory lives as long as somebody uses it.
                # Not "restarting": front ends take that for a kernel that died, and tell their user so.
                self.channels.announce("starting")
                try:
                    await self._fresh_kernel(news)
                finally:
                    self.channels.announce("idle")
            else:
                await self.ensure_kernel()
                self.announce(*news)

    async def close(self, reason: str = "the session was ended") -> None:
        """End the session and free all it has. Idempotent."""
        if self.state is State.CLOSED:
            return
        self._move(State.CLOSED)
        self.channels.close(SessionClosed(reason))
        if self._kernel is not None:
            await self._kernel.kill(SessionClosed(reason))
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._launch.workspace is not None and self.spec.workspace is None:
            await self._around.kernels.delete_workspace(self._launch.workspace)

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools beside the kernel; see `KernelHandle.run_tool`."""
        with self._activity.use():
            kernel = await self.ensure_kernel()
            async with aclosing(kernel.handle.run_tool(name, argument, stdin)) as output:
                async for piece in output:
                    yield piece
