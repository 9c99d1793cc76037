"""One cell in flight: its events, its deadline, and its one end.

A cell is finished when *both* its shell reply and its `idle` are in; they race on two sockets, and a kernel
may lose, fake or repeat either of them. Whatever it sends, an execution ends exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from sessions.errors import ExecutionTimeout, KernelDied, SessionError
from sessions.kernel import Kernel
from sessions.messages import Message
from sessions.models import ExecuteRequest, ExecutionResult, StateChange, Status
from sessions.outputs import Event, weight
from sessions.tasks import spawn
from sessions.transcript import Cell, Transcript

#: what makes ipykernel's `input()` raise EOFError
END_OF_INPUT = "\x04"
#: seconds that a deadline may be noticed too late; beyond that the gateway itself stood still
STALL = 1.0
#: seconds to read what has come meanwhile
CATCH_UP = 0.5
#: how often one cell may ask for input; each may be kept for a client until it reads it
QUESTIONS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a kernel that should have answered, in seconds."""

    #: for `idle` after the reply
    idle: float = 1.0
    #: for proof, after that, that the kernel has nothing more to say
    proof: float = 10.0
    #: for the end of a cell after each attempt to interrupt it
    rung: float = 2.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What a client may count on when its cell begins."""

    change: StateChange = StateChange.PRESERVED
    #: why the variables are not preserved
    reason: str | None = None
    #: how many kernels the session has had
    incarnation: int = 1


class Execution:
    """One cell that was sent to a kernel; iterate over it for its events."""

    #: who iterates is told of every event; see `retries.Attempt`, where that may be otherwise
    gap = False

    def __init__(
        self,
        kernel: Kernel,
        transcript: Transcript,
        request: ExecuteRequest,
        standing: Standing = Standing(),
        patience: Patience = Patience(),
    ) -> None:
        """Send the cell.

        Raises:
            ConnectionFailed: the kernel takes no messages.
        """
        self.kernel = kernel
        self.request = request
        self._transcript = transcript
        self._standing = standing
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._finished = asyncio.Event()
        self._answers = deque(request.stdin or ())
        self._question: dict[str, Any] | None = None
        self._questions = 0
        self._reply: dict[str, Any] | None = None
        self._idle_seen = False
        #: `idle` came first, and the reply is waited for
        self._doubted = False
        #: something that came on shell was lost
        self._loss = False
        #: anything came on iopub
        self._heard = False
        self._timed_out = False
        self._interrupted = False
        #: the number of the event that was told last
        self.number = 0
        #: how it ended; None while it runs
        self.status: Status | None = None
        self._error: SessionError | None = None
        self._output_lost = False
        self._answer: Any = None
        self._output_bytes = 0
        self._memory: int | None = None
        self._started_at = self._ended_at = self._loop.time()
        #: the request's message id
        self.id = kernel.connection.send("shell", "execute_request", self._content())
        self._cell: Cell = transcript.open(self.id, request.code)
        self._supervisor = spawn(self._supervise(), "execution deadline")

    def _content(self) -> dict[str, Any]:
        request = self.request
        return {
            "code": request.code,
            "silent": False,
            "store_history": request.store_history,
            "user_expressions": {},
            "allow_stdin": request.interactive or request.stdin is not None,
            "stop_on_error": True,
        }

    # -- what the kernel says -------------------------------------------------------------------------------

    def feed(self, message: Message, event: Event | None) -> None:
        """Take in a message of this cell.

        Args:
            message: from the kernel.
            event: what the transcript made of it.
        """
        if self.status is not None:
            return
        match message.channel, message.type:
            case "iopub", "status":
                self._heard = True
                self._idle_seen = message.content.get("execution_state") == "idle"
                if self._idle_seen and self._reply is None and not self._doubted:
                    self._doubted = True
                    spawn(self._miss_reply(), "wait for reply")
            case "iopub", _:
                self._put_out(message, event)
            case "shell", "execute_reply" if self._reply is None:
                self._reply = message.content
                if not self._idle_seen:
                    spawn(self._do_without_idle(), "wait for idle")
            case "stdin", "input_request":
                self._asked(message)
        if self._reply is not None and self._idle_seen:
            self._end(self._status_of_reply())

    def _put_out(self, message: Message, event: Event | None) -> None:
        self._heard = True
        self._output_bytes += weight(message)
        data, mime = message.content.get("data"), self.request.answer_mime
        if mime is not None and message.type == "display_data" and isinstance(data, dict) and mime in data:
            self._answer = data[mime]  # the last one counts, however much was put out before
        elif event is not None:
            self._emit(event)

    def kernel_gone(self, cause: SessionError) -> None:
        """The kernel ended, and with it the cell, if that had not ended before."""
        if self.status is not None:
            return
        self._standing = replace(self._standing, change=StateChange.LOST, reason=cause.message)
        if self._timed_out:
            self._end(Status.TIMEOUT, self._timeout_error("it ignored the interrupt, so its kernel was ended"))
        else:
            self._end(Status.DIED, cause)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def _do_without_idle(self) -> None:
        """The reply came, but `idle` did not: it was lost, or is still behind a lot of output.

        Silence proves nothing on a busy machine. What the kernel says to a later question does: its iopub keeps
        order, so nothing of this cell can come after that.
        """
        if await self._over_within(self._patience.idle):
            return
        try:
            async with asyncio.timeout(self._patience.proof):
                await self.kernel.connection.ready()
        except TimeoutError:
            if self.status is None and not self._heard:
                # Not one message on iopub: it is broken, and all later output would be lost without a word.
                await self.kernel.kill(KernelDied("the kernel's output channel no longer works"))
                return  # whoever waits for the kernel's end ends the cell, with its variables lost
        self._end_incomplete()

    async def _miss_reply(self) -> None:
        """`idle` came, but the reply did not: ipykernel forgets it when it is interrupted before the cell has begun."""
        if not await self._over_within(self._patience.idle):
            await self.kernel.connection.ready()  # what it answers next comes after the reply, if there is one
            self._end_incomplete(lost=self._loss)

    async def do_without_reply(self) -> None:
        """A message on shell was lost. It was the reply, if the kernel answers what it is asked next."""
        self._loss = True
        await self.kernel.connection.ready()
        self._end_incomplete()

    def _end_incomplete(self, *, lost: bool = True) -> None:
        if self.status is None:
            self._output_lost = lost
            self._end(self._status_of_reply())

    def _status_of_reply(self) -> Status:
        reply = self._reply or {}
        if self._timed_out:
            self._error = self._timeout_error("it was interrupted")
            return Status.TIMEOUT
        if reply.get("status") == "ok":
            return Status.OK
        if self._interrupted or str(reply.get("status")) in {"abort", "aborted"}:
            return Status.INTERRUPTED
        return Status.ERROR

    def _timeout_error(self, what: str) -> ExecutionTimeout:
        timeout = self.request.timeout
        return ExecutionTimeout(f"the code ran longer than {timeout:g} s; {what}", timeout=timeout)

    def _end(self, status: Status, error: SessionError | None = None) -> None:
        if self.status is not None:
            return
        self.status = status
        self._error = error or self._error
        self._ended_at = self._loop.time()
        self._memory = self.kernel.handle.memory()
        if not self.request.store_history:
            self._transcript.forget(self.id)
        self._finished.set()
        self._wake.set()

    # -- input() --------------------------------------------------------------------------------------------

    def _asked(self, message: Message) -> None:
        self._questions += 1
        if self._questions > QUESTIONS_MAX:
            return
        # Not the whole header: the rest of it may be anything.
        self._question = {name: message.header[name] for name in ("msg_id", "msg_type")}
        if self._answers:
            self.answer(self._answers.popleft())
        elif self.request.interactive:
            prompt, password = message.content.get("prompt"), message.content.get("password")
            self._emit({"type": "input_request", "prompt": str(prompt or ""), "password": password is True})
        else:
            self.answer(END_OF_INPUT)

    @property
    def asks(self) -> bool:
        """Whether its `input()` waits for an answer."""
        return self._question is not None and self.status is None

    def answer(self, text: str) -> bool:
        """Answer the cell's `input()`.

        Returns:
            whether it had asked.
        """
        if self._question is None or self.status is not None:
            return False
        self.kernel.connection.send("stdin", "input_reply", {"status": "ok", "value": text}, parent=self._question)
        self._question = None
        return True

    # -- deadline and interruption --------------------------------------------------------------------------

    async def _supervise(self) -> None:
        if await self._over_within(self.request.timeout) or self._reply is not None:
            return
        self._timed_out = True
        if not await self.kernel.climb(self._finished, self._patience.rung):
            await self.kernel.kill(KernelDied())

    async def _over_within(self, seconds: float) -> bool:
        deadline = self._loop.time() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._finished.wait()
        except TimeoutError:
            if self._loop.time() < deadline + STALL:
                return False
            await asyncio.sleep(CATCH_UP)
            return self._finished.is_set()
        return True

    async def interrupt(self) -> None:
        """Interrupt the cell and keep the variables; it may take a while to end, or ignore it until its deadline."""
        self._interrupted = True
        await self.kernel.climb(self._finished, self._patience.rung)

    @property
    def size(self) -> int:
        """Bytes of outputs that are kept."""
        return self._cell.area.size

    async def result(self) -> ExecutionResult:
        """Wait for the end, and say how it was."""
        await self._finished.wait()
        if self.status is None:
            raise RuntimeError("an execution finished without a status")
        return ExecutionResult(
            status=self.status,
            execution_count=self._cell.execution_count,
            outputs=self._cell.area.outputs(),
            duration=self._ended_at - self._started_at,
            state=self._standing.change,
            state_reason=self._standing.reason,
            incarnation=self._standing.incarnation,
            truncated=self._cell.area.truncated or self._output_lost,
            error=self._error,
            output_bytes=self._output_bytes,
            memory=self._memory,
            answer=self._answer,
        )

    async def leave(self) -> ExecutionResult:
        """Interrupt the cell if it still runs, because nobody wants it any more, and wait for its end."""
        if self.status is None:
            await self.interrupt()
        return await self.result()

    # -- events ---------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The cell's events until its end."""
        while True:
            while self._events:
                self.number += 1
                yield self._events.popleft()
            if self.status is not None:
                return
            self._wake.clear()
            await self._wake.wait()
