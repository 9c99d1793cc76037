"""An execution: one cell of the API, with its events, its answers to `input()`, and its result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernel_image.protocol import EXTRAS, TOOL_CALL
from sessions.cells.cell import Cell
from sessions.cells.outputs import Event, output_size
from sessions.cells.packed import PackedOutputs
from sessions.cells.transcript import Entry, Transcript
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import (
    CellRunsOn,
    ConnectionFailed,
    ExecutionTimeout,
    KernelDied,
    QuotaExceeded,
    SessionError,
)
from sessions.model.values import ExecuteRequest, ExecutionResult, StateChange, StateNotice, Timeouts
from sessions.tools.calls import GATEWAY_STOPPED, ToolCalls
from sessions.tools.servers import CellServers

#: answer that makes ipykernel's `input()` raise EOFError
END_OF_INPUT = "\x04"
#: maximum number of questions of one cell to its client, and of characters in all of them: the gateway may keep all of
#: them until the cell's end
QUESTIONS_MAX = 1000
PROMPTS_MAX = 1_000_000
#: characters of one question; the rest is cut off
PROMPT_MAX = 10_000
#: bytes of events that may wait for a cell's client, in addition to the cell's limit of output
UNREAD_BYTES = 1024**2
#: events that a slow client gets in any case
_ALWAYS = {"started", "input_request", "tool_call", "stopped", "continued"}
#: bytes that a waiting event takes in memory in addition to its output
EVENT_BYTES = 800


class UnreadEvents:
    """The events that a client has not read yet. When they are too many, events that later ones replace are dropped."""

    def __init__(self, most: int) -> None:
        """Begin empty.

        Args:
            most: bytes that are always kept. Events are dropped when they take more than twice as many.
        """
        #: whether events that the client still needs were dropped, too
        self.gap = False
        self._most = most
        self._events: deque[tuple[Event, int]] = deque()
        self._size = 0

    def append(self, event: Event, size: int) -> None:
        """Add an event with `size` bytes of output."""
        self._events.append((event, size + EVENT_BYTES))
        self._size += size + EVENT_BYTES
        if self._size > 2 * self._most:
            needed = list(self._needed())
            self._events = deque(reversed(needed))
            self._size = sum(size for _, size in needed)

    def take(self) -> Event | None:
        """Return the next event. None means that no event waits."""
        if not self._events:
            return None
        event, size = self._events.popleft()
        self._size -= size
        return event

    def _needed(self) -> Iterator[tuple[Event, int]]:
        """Yield the events that no later event replaces, the last event first, as many as fit."""
        left = self._most
        updated: set[str] = set()
        shown = cleared = moved = False
        for event, size in reversed(self._events):
            match event["type"]:
                case "output" | "clear_output" if cleared:
                    continue
                case "output":
                    shown = True
                case "clear_output":
                    cleared = shown or not event["wait"]
                case "update_display_data":
                    if event["display_id"] in updated:
                        continue
                    updated.add(event["display_id"])
                case "stopped" | "continued" if moved:
                    continue
                case "stopped" | "continued":
                    moved = True
            left -= size
            if left >= 0 or event["type"] in _ALWAYS:
                yield event, size
            else:
                self.gap = True


@dataclass(frozen=True, slots=True)
class Question:
    """What a cell asks with `input()`."""

    prompt: str
    #: whether to hide the answer
    password: bool
    #: number among the cell's questions, from 1
    number: int

    @classmethod
    def of(cls, content: Mapping[str, Any], number: int) -> Question:
        """Return the question of a kernel's message, which may have anything in it."""
        asked = content.get("prompt")
        return cls(asked[:PROMPT_MAX] if isinstance(asked, str) else "", content.get("password") is True, number)


class Execution(Cell):
    """One cell of the API; iterate over it for its events."""

    def __init__(
        self,
        kernel: Kernel,
        transcript: Transcript,
        request: ExecuteRequest,
        *,
        notice: StateNotice,
        timeouts: Timeouts,
        servers: CellServers | None = None,
    ) -> None:
        """Prepare a cell; `send` sends it.

        Args:
            kernel: runs it.
            transcript: keeps its outputs.
            request: cell to run.
            notice: state of the variables that its result reports.
            timeouts: timeouts of its end.
            servers: the operator's servers of tools, as the cell may use them. None means none.
        """
        super().__init__(kernel, timeouts, exclusive=True)
        self.request = request
        #: the request's message id
        self.id = ""
        #: set when no client reads the events any more
        self.client_left = asyncio.Event()
        #: the number of the last event that the client got
        self.number = 0
        #: the cell's calls of tools
        self.tools = ToolCalls(kernel.connection, request.tools, self._emit, self._stop_calls, servers)
        self._servers = servers
        self._transcript = transcript
        self._notice = notice
        self._wake = asyncio.Event()
        self._stdin = deque(request.stdin or ())
        self._question: dict[str, Any] | None = None
        #: what the cell has asked its client last; None before the first question
        self._asked: Question | None = None
        self._questions = 0
        self._prompts = 0
        self._answer: Any = None
        self._output_bytes = 0
        self._entry: Entry
        self._unread: UnreadEvents

    def send(self) -> None:
        """Send the cell and begin its deadline.

        Raises:
            ConnectionFailed: when the kernel accepts no messages.
        """
        self.id = self.kernel.connection.send("shell", "execute_request", self._content())
        self._entry = self._transcript.open(self.id, self.request.code, self.request.env)
        self._unread = UnreadEvents(self._transcript.max_output_bytes + UNREAD_BYTES)
        self.start(self.request.timeout)

    def _content(self) -> dict[str, Any]:
        request = self.request
        extras: dict[str, Any] = {"env": dict(request.env), "formats": request.formats}
        if request.tools:
            extras["tools"] = [asdict(tool) for tool in request.tools]
        spec = self.kernel.launch.kernelspec
        if spec.tools and self._servers is not None and (names := self._servers.names):
            extras["tool_servers"] = list(names)
        if request.frame is not None:
            extras["frame"] = request.frame
        asks = spec.extras and any(value not in ({}, ()) for value in extras.values())
        return ({EXTRAS: extras} if asks else {}) | {
            "code": request.code,
            "silent": False,
            "store_history": request.store_history,
            "user_expressions": {},
            "allow_stdin": request.interactive or request.stdin is not None,
            "stop_on_error": True,
        }

    # -- what the kernel sends ------------------------------------------------------------------------------

    def handle(self, message: Message, event: Event | None) -> None:
        """Take a message of this cell.

        Args:
            message: from the kernel.
            event: event that the transcript made of the message, if any.
        """
        if self.ended.is_set():
            return
        match message.channel, message.type:
            case "iopub", "status":
                self.published(message)
            case "iopub", _ if message.type == TOOL_CALL:
                self.tools.called(message)
                self.published(message)
            case "iopub", _:
                self._take_output(message, event)
                self.published(message)
            case "shell", "execute_reply":
                self.replied(message.content)
            case "stdin", "input_request":
                self._ask(message)

    def _take_output(self, message: Message, event: Event | None) -> None:
        self._output_bytes += output_size(message)
        if self.is_answer(message):
            self._answer = message.content["data"][self.request.answer_mime]  # the last one counts
        elif event is not None:
            self._emit(event, output_size(message))

    def is_answer(self, message: Message) -> bool:
        """Return whether a message is the display with the request's `answer_mime`. That display is no output."""
        data, mime = message.content.get("data"), self.request.answer_mime
        return mime is not None and message.type == "display_data" and isinstance(data, dict) and mime in data

    def tell(self, event: Event) -> None:
        """Tell the client that the cell stands at a breakpoint, or goes on."""
        if self.status is None:
            self._emit(event)

    def _emit(self, event: Event, size: int = 0) -> None:
        self._unread.append(event, size)
        self._wake.set()

    def kernel_gone(self, cause: SessionError, after: StateNotice | None = None) -> None:
        """End the cell with its kernel.

        Args:
            cause: why the kernel has ended.
            after: state of the variables after a return to a checkpoint. None means that the variables are lost.
        """
        if self.status is None:
            change, reason = (after.change, after.reason) if after else (StateChange.LOST, cause.message)
            self._notice = replace(self._notice, change=change, reason=reason)
            if isinstance(self._stopped, ExecutionTimeout):
                self._stopped = self._timeout("it ignored the interrupt, so its kernel was ended")
        super().kernel_gone(cause)

    def release(self) -> bool:
        """Stop to watch the cell, as `Cell.release` does. If it runs on, its client gets the error `CellRunsOn`."""
        runs_on = super().release()
        if runs_on:
            self.tools.end(GATEWAY_STOPPED)
            self.error = CellRunsOn()
            self._wake.set()
        return runs_on

    def expire(self, timeout: float) -> None:
        """End the cell now, as at a deadline of `timeout` seconds. Its client counts the time in another way."""
        if not self.returned.is_set():
            self.request = replace(self.request, timeout=timeout)
            self._expire()

    def _expire(self) -> None:
        self.stop(self._timeout("it was interrupted"), KernelDied())

    def _timeout(self, consequence: str) -> ExecutionTimeout:
        timeout = self.request.timeout
        return ExecutionTimeout(f"the code ran longer than {timeout:g} s; {consequence}", timeout=timeout)

    def _stop_calls(self, error: QuotaExceeded) -> None:
        self.stop(error, KernelDied())

    def _on_end(self) -> None:
        self.tools.end()
        payload = (self._reply or {}).get("payload")
        pages = map(_page, payload) if isinstance(payload, list) else ()
        for event in self._transcript.end(self._entry, self.failure, filter(None, pages), self.error):
            self._emit(event)
        if not self.request.store_history:
            self._transcript.forget(self.id)
        self._wake.set()

    # -- input() --------------------------------------------------------------------------------------------

    def _ask(self, message: Message) -> None:
        # Not the whole header: a hostile kernel may put anything there.
        self._question = {name: message.header[name] for name in ("msg_id", "msg_type")}
        if not self._stdin and self.request.interactive:
            self._ask_client(message.content)
            return
        with suppress(ConnectionFailed):  # a kernel that does not read answers: its cell ends at the deadline
            self.answer(self._stdin.popleft() if self._stdin else END_OF_INPUT)

    def _ask_client(self, content: Mapping[str, Any]) -> None:
        self._questions += 1
        asked = Question.of(content, self._questions)
        self._prompts += len(asked.prompt)
        if self._questions <= QUESTIONS_MAX and self._prompts <= PROMPTS_MAX:
            self._asked = asked
            self._emit({"type": "input_request", "prompt": asked.prompt, "password": asked.password})
            return
        self._question = None
        message = f"the cell asked more than {QUESTIONS_MAX} questions, or more than {PROMPTS_MAX} characters of them"
        self.stop(QuotaExceeded(message, max=QUESTIONS_MAX), KernelDied())

    @property
    def asks(self) -> bool:
        """Whether the cell's `input()` waits for an answer."""
        return self._question is not None and self.status is None

    @property
    def question(self) -> Question | None:
        """What the cell's `input()` asks now. None means that it waits for no answer of a client."""
        return self._asked if self.asks else None

    def answer(self, text: str) -> bool:
        """Answer the cell's `input()`.

        Returns:
            True if the cell had asked.
        """
        if self._question is None or self.status is not None:
            return False
        self.kernel.connection.send("stdin", "input_reply", {"status": "ok", "value": text}, parent=self._question)
        self._question = None
        return True

    # -- what the client gets -------------------------------------------------------------------------------

    @property
    def gap(self) -> bool:
        """Whether the client was too slow and has missed events. The result still has all outputs."""
        return self._unread.gap

    @property
    def size(self) -> int:
        """Bytes of outputs that are kept."""
        return self._entry.area.size

    def outputs_so_far(self) -> PackedOutputs:
        """Return the outputs as they are now, for `joined`."""
        return self._entry.area.packed_outputs()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the cell's events until its end."""
        while True:
            while (event := self._unread.take()) is not None:
                self.number += 1
                yield event
            if self.ended.is_set():
                return
            self._wake.clear()
            await self._wake.wait()

    async def result(self) -> ExecutionResult:
        """Wait for the end, and return the result.

        Raises:
            CellRunsOn: when the gateway ends before the cell.
        """
        await self.ended.wait()
        if self.status is None:
            raise self.error or RuntimeError("an execution ended without a status")
        return ExecutionResult(
            status=self.status,
            execution_count=self._entry.execution_count,
            outputs=self._entry.area.outputs(),
            duration=self.duration,
            state=self._notice.change,
            state_reason=self._notice.reason,
            incarnation=self._notice.incarnation,
            truncated=self._entry.area.truncated or self.incomplete,
            omitted=self._entry.area.omitted,
            error=self.error,
            output_bytes=self._output_bytes,
            memory=self.memory,
            answer=self._answer,
        )

    async def leave(self) -> ExecutionResult:
        """Interrupt the cell if it still runs, and wait for its end: its client has left."""
        if self.status is None:
            await self.interrupt()
        return await self.result()


def _page(payload: Any) -> Mapping[str, Any] | None:
    """Return the content of a reply's payload by media type. None means that the payload shows nothing.

    Front ends show pages (of `len?`) beside the notebook, and put code (of `%load`) into a new cell. Clients of the API
    can do neither, so they get the content as a display. Source: "Messaging in Jupyter", payloads.
    """
    match payload:
        case {"source": "page", "data": dict(data)}:
            return data
        case {"source": "set_next_input", "text": str(text)}:
            return {"text/plain": text}
    return None
