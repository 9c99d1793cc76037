"""A session's debugger: at most one debugged cell, which ends when nobody acts any more.

A debugged cell is an execution like any other, with a turn, an audit and a deadline. While it stands at a breakpoint,
the clock of its deadline is stopped, and another one runs: `ACT_WITHIN` from the client's last command, and `LONGEST`
from its start. Events come from the kernel, which may be hostile. They only make the gateway look; what a client sees
is the debugger's answer to a request, and no event renews the time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from sessions.cells.execution import Execution
from sessions.cells.idempotency import Run
from sessions.debugging.adapter import Adapter
from sessions.debugging.model import THIS_CELL, BreakpointSet, DebugState, Frame, FrameVariable, Seen, Stop
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import (
    DebuggerUnavailable,
    DebugRefused,
    ExecutionTimeout,
    InvalidRequest,
    KernelDied,
    SessionError,
    ShuttingDown,
)
from sessions.model.kernelspecs import KernelSpec
from sessions.model.tasks import set_within, shielded, spawn
from sessions.model.values import Breakpoint, DebugPlan, ExecuteRequest

#: seconds after a client's last command in which a stopped cell is ended, and the longest time of a debugged cell
ACT_WITHIN, LONGEST = 180.0, 3600.0
#: most seconds that a command waits for the next stop before it answers that the cell runs
ANSWER_WITHIN = 10.0
#: log points that wait for the next answer, and characters of each
LOG_MAX, LOG_TEXT_MAX = 100, 500
#: type of the messages with the debugger's events
DEBUG_EVENT = "debug_event"
MOVES = frozenset({"next", "stepIn", "stepOut", "continue"})


class Debugger:
    """Debugs the cells of one session, one at a time."""

    def __init__(
        self,
        kernelspec: KernelSpec,
        submit: Callable[[ExecuteRequest], Awaitable[Run]],
        record: Callable[[Kernel], None],
    ) -> None:
        """Debug nothing yet.

        Args:
            kernelspec: of the session's language.
            submit: runs a cell when its turn comes, without a client that waits.
            record: records that a kernel's debugger is about to be started.
        """
        self._kernelspec = kernelspec
        self._submit = submit
        self._record = record
        self._run: Run | None = None
        self._adapter: Adapter | None = None
        self._breakpoints: list[BreakpointSet] = []
        self._stop: Stop | None = None
        self._log: deque[str] = deque(maxlen=LOG_MAX)
        #: set when the cell has stopped or ended since the last command that moves it
        self._news = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None
        self._began = 0.0
        #: whether a client's command is under way
        self._acting = asyncio.Lock()

    @property
    def active(self) -> bool:
        """Whether a debugged cell waits, runs or stands."""
        return self._run is not None and not self._run.task.done()

    def require(self) -> None:
        """Refuse a language that has no debugger.

        Raises:
            DebuggerUnavailable: always for such a language.
        """
        if not self._kernelspec.debugger:
            raise DebuggerUnavailable(f"cells of {self._kernelspec.display_name} cannot be debugged")

    # -- what the session's executions call -------------------------------------------------------------------

    async def attach(self, kernel: Kernel, request: ExecuteRequest) -> None:
        """Attach to the kernel before it runs the debugged cell.

        Raises:
            SessionError: when that fails; the cell is not run.
        """
        if request.debug is None:
            return
        self._record(kernel)
        adapter = Adapter(kernel, request.code)
        try:
            self._breakpoints = await adapter.attach(request.debug)
        except (SessionError, asyncio.CancelledError):
            await shielded(spawn(_detached(adapter), "detach a debugger"))
            raise
        self._adapter = adapter

    async def detach(self, request: ExecuteRequest) -> None:
        """Detach after the end of the debugged cell, before the next cell runs."""
        if request.debug is None or self._adapter is None:
            return
        adapter, self._adapter, self._stop = self._adapter, None, None
        await _detached(adapter)

    def received(self, message: Message) -> None:
        """Take an event of the kernel's debugger. Any code can send such a message, at any time."""
        if message.type != DEBUG_EVENT or message.channel != "iopub" or self._adapter is None:
            return
        match message.content.get("event"), message.content.get("body"):
            case "stopped", {"threadId": int(thread), "reason": str(reason), **body} if self._stop is None:
                told = [body.get("text"), body.get("description")] if reason == "exception" else []
                parts = [text.partition("  ")[0] for text in told if isinstance(text, str)]
                self._stopped(Stop(thread, reason[:40], ": ".join(parts)[:LOG_TEXT_MAX]))
            case "output", {"output": str(text), "category": "stdout" | "console"}:
                self._log.append(text[:LOG_TEXT_MAX])

    def _stopped(self, stop: Stop) -> None:
        self._stop = stop
        if (execution := self._execution) is not None and self._adapter is not None:
            execution.hold_deadline()
            spawn(self._tell(self._adapter, execution, stop), "look at a stopped cell")

    async def _tell(self, adapter: Adapter, execution: Execution, stop: Stop) -> None:
        """Tell whoever reads the cell's events where it stands, as the debugger answers."""
        frames: list[Frame] = []
        with suppress(SessionError):
            frames = await adapter.frames(stop.thread)
        if self._stop is stop:
            own = (frame.line for frame in frames if frame.source == THIS_CELL)
            execution.tell(
                {
                    "type": "stopped",
                    "reason": stop.reason,
                    "description": stop.description or None,
                    "line": next(own, None),
                    "frame": frames[0].model_dump() if frames else None,
                }
            )
            self._news.set()

    @property
    def _execution(self) -> Execution | None:
        return None if self._run is None else self._run.execution

    @asynccontextmanager
    async def taking_over(self, kernel: Kernel) -> AsyncIterator[bool]:
        """Yield whether a cell stands at a breakpoint of an earlier gateway, whose breakpoints are all taken away.

        The caller ends the cell within the `with` block. At its end the earlier gateway's debugger is detached.
        """
        adapter = Adapter(kernel, "")
        threads = await adapter.left_behind() if kernel.debugged else None  # the question loads the debugger
        try:
            yield bool(threads)
        finally:
            if threads is not None:
                await _detached(adapter)

    # -- what clients do --------------------------------------------------------------------------------------

    async def begin(self, request: ExecuteRequest) -> ExecuteRequest:
        """Run a cell under the debugger when its turn comes. A client that returns to the debugged cell begins nothing.

        Returns:
            the request with the idempotency key that the cell has.

        Raises:
            DebuggerUnavailable: when the language has no debugger.
            DebugRefused: when another cell is debugged already.
            SessionError: when the cell is refused.
        """
        self.require()
        key = request.idempotency_key or secrets.token_hex(16)
        request = replace(request, idempotency_key=key)
        async with self._acting:
            if self._run is not None and self.active:
                if self._run.key == key:
                    return request
                raise DebugRefused("a cell is debugged already: end it, or go on with it")
            self._stop, self._breakpoints = None, []
            self._log.clear()
            self._news.clear()
            run = self._run = await self._submit(request)
            self._began = asyncio.get_running_loop().time()
            self._act()
            run.task.add_done_callback(lambda _: self._ended(run))
        return request

    async def launch(self, request: ExecuteRequest, within: float = ANSWER_WITHIN) -> Seen:
        """Run a cell under the debugger, and wait for `within` seconds until it stops or ends.

        Raises:
            SessionError: as in `begin`, or when the debugger refuses.
        """
        await self.begin(request)
        return await self._await_stop(within)

    async def move(self, command: str, within: float = ANSWER_WITHIN) -> Seen:
        """Go on (`next`, `stepIn`, `stepOut` or `continue`), and wait for `within` seconds for the next stop.

        Raises:
            DebugRefused: when no cell is stopped.
            ConnectionFailed: when the debugger does not answer.
        """
        async with self._acting:
            adapter, stop = self._stopped_cell()
            self._news.clear()
            self._stop = None
            self._act()
            if (execution := self._execution) is not None:
                execution.resume_deadline()
                execution.tell({"type": "continued"})
            try:
                await adapter.move(command, stop.thread)
            except DebugRefused:  # the cell stands where it stood
                self._stopped(stop)
                raise
        return await self._await_stop(within)

    async def wait(self, within: float = ANSWER_WITHIN) -> Seen:
        """Wait for `within` seconds until a running cell stops or ends."""
        self._act()
        return await self._await_stop(within)

    async def pause(self, within: float = ANSWER_WITHIN) -> Seen:
        """Stop a running cell where it is."""
        async with self._acting:
            if self._adapter is None or self._stop is not None:
                raise DebugRefused("no debugged cell runs")
            self._act()
            await self._adapter.move("pause", 1)
        return await self._await_stop(within)

    async def look(self, frame: int = 0) -> Seen:
        """Return what there is to see now, with the variables of a frame if the cell is stopped."""
        async with self._acting:
            self._act()
            return await self._seen(frame)

    async def evaluate(self, expression: str, frame: int) -> Seen:
        """Evaluate an expression in a frame of the stopped cell.

        Raises:
            DebugRefused: when no cell is stopped, there is no such frame, or the expression fails.
            ConnectionFailed: when the expression takes too long.
        """
        async with self._acting:
            adapter, stop = self._stopped_cell()
            self._act()
            await adapter.frames(stop.thread)
            value = await adapter.evaluate(expression, frame)
            return self._of_run(DebugState.STOPPED, reason=stop.reason, value=value)

    async def set_breakpoints(self, breakpoints: tuple[Breakpoint, ...]) -> Seen:
        """Replace the breakpoints of the debugged cell."""
        async with self._acting:
            if self._adapter is None:
                raise DebugRefused("no cell is debugged")
            self._act()
            self._breakpoints = await self._adapter.set_breakpoints(breakpoints)
            return self._of_run(DebugState.RUNNING if self._stop is None else DebugState.STOPPED)

    async def terminate(self, within: float = ANSWER_WITHIN) -> Seen:
        """End the debugged cell like an interrupt does, and wait for its end for `within` seconds; the variables stay.

        Raises:
            DebugRefused: when no cell is debugged.
        """
        run = self._run
        if run is None or run.task.done():
            raise DebugRefused("no cell is debugged")
        await self._interrupt(run)
        await asyncio.wait({run.task}, timeout=within)
        return self._of_run(DebugState.RUNNING if self.active else DebugState.ENDED)

    def leave(self) -> None:
        """End the debugged cell, because its client has gone."""
        if self._run is not None and self.active:
            spawn(self._interrupt(self._run), "end of a debugged cell")

    def close(self) -> None:
        """End the debugged cell, because the gateway is ending, and nobody could go on with the cell."""
        if self._run is not None and self.active:
            why = "the gateway is shutting down, and the debugged cell was ended; the variables stay"
            spawn(self._interrupt(self._run, ShuttingDown(why)), "end of a debugged cell")

    async def _interrupt(self, run: Run, why: SessionError | None = None) -> None:
        """Interrupt a debugged cell. `why` becomes its error."""
        if self._adapter is not None:
            with suppress(SessionError):  # the cell is interrupted whatever the debugger says
                await self._adapter.stop_nowhere()
        self._resume()
        if why is not None and run.execution is not None:
            run.execution.stop(why, KernelDied())
        else:
            run.interrupt()

    def _resume(self) -> None:
        if (execution := self._execution) is not None:
            execution.resume_deadline()

    # -- helpers ----------------------------------------------------------------------------------------------

    def _stopped_cell(self) -> tuple[Adapter, Stop]:
        if self._adapter is None or self._stop is None:
            raise DebugRefused("no cell is stopped" + (": the debugged one runs" if self.active else ""))
        return self._adapter, self._stop

    async def _await_stop(self, within: float) -> Seen:
        await set_within(self._news, within)
        async with self._acting:
            return await self._seen(0)

    async def _seen(self, frame: int) -> Seen:
        if self._run is None:
            return Seen(DebugState.NONE)
        if self._run.task.done():
            return self._of_run(DebugState.ENDED)
        adapter, stop = self._adapter, self._stop
        if adapter is None or stop is None:
            return self._of_run(DebugState.RUNNING)
        frames = await adapter.frames(stop.thread)
        variables: list[FrameVariable] = await adapter.variables(frame) if frames else []
        told = {"reason": stop.reason, "description": stop.description}
        return self._of_run(DebugState.STOPPED, frames=frames, variables=variables, **told)

    def _of_run(self, state: DebugState, **fields: Any) -> Seen:
        log = list(self._log)
        self._log.clear()
        run = self._run
        error = run.error if run is not None and run.task.done() else None
        execution = run.id if run else ""
        return Seen(state, execution=execution, breakpoints=self._breakpoints, log=log, error=error, **fields)

    def _act(self) -> None:
        """Start the time anew within which a client must act."""
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        left = self._began + LONGEST - loop.time()
        self._idle = loop.call_later(min(ACT_WITHIN, max(0.0, left)), self._expire) if self.active else None

    def _expire(self) -> None:
        """End a cell that stands at a breakpoint, because nobody acts. A running cell has its own deadline."""
        execution = self._execution
        if self._stop is None or execution is None:
            self._idle = asyncio.get_running_loop().call_later(ACT_WITHIN, self._expire) if self.active else None
            return
        seconds = asyncio.get_running_loop().time() - self._began
        text = f"the debugged cell stood for too long without a command, and was ended after {seconds:.0f} s in all"
        self._resume()
        execution.stop(ExecutionTimeout(text, timeout=ACT_WITHIN), KernelDied())

    def _ended(self, run: Run) -> None:
        if self._run is run:
            self._stop = None
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            self._news.set()


async def _detached(adapter: Adapter) -> None:
    """Detach a debugger. If it does not answer, because code has broken it, the next debugged cell tries again."""
    if adapter.kernel.alive:
        with suppress(SessionError):
            await adapter.detach()


def valid_plan(breakpoints: tuple[Breakpoint, ...], exceptions: tuple[str, ...], code: str) -> DebugPlan:
    """Return where a cell stops.

    Raises:
        InvalidRequest: when a breakpoint is not in the code.
    """
    lines = len(code.splitlines())
    for one in breakpoints:
        if one.line > lines:
            raise InvalidRequest(f"the code has {lines} lines, and a breakpoint is in line {one.line}", field="line")
    return DebugPlan(breakpoints, exceptions)
