"""The calls of tools of one cell: their bounds, and the way of each answer to the kernel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from kernel_image.protocol import TOOL_REPLY
from sessions.kernels.connection import Connection
from sessions.kernels.messages import NAME_MAX, Message
from sessions.model import exact_json
from sessions.model.errors import ConnectionFailed, InvalidRequest, QuotaExceeded
from sessions.model.tasks import spawn
from sessions.model.values import Tool
from sessions.tools.servers import CellServers, ToolFailed

#: maximum calls of one cell that wait for their answers, and bytes of their arguments together
WAITING_MAX = 64
WAITING_BYTES_MAX = 4 * 1024**2
#: maximum bytes of one call, and of one answer. A kernel's message has some bytes around the arguments
CALL_BYTES_MAX = 1024**2 + 8 * 1024
ANSWER_BYTES_MAX = 1024**2
#: maximum calls of one cell, also of those that are refused; after one more the cell is stopped
CALLS_MAX = 10_000
#: characters of an error's text that the kernel gets; the rest is cut off
ERROR_MAX = 10_000
#: why calls end when the cell's client does not come back
CLIENT_LEFT = "the client that has handed over the tools has left"
#: why calls end when the gateway ends before their cell
GATEWAY_STOPPED = "the gateway that would call the tool has been stopped"
#: name of the errors that are not the tool's own
_ERROR = "ToolError"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call without an answer."""

    #: the kernel's own id of the call
    call: str
    size: int


def ignore(*_arguments: object) -> None:
    """Do nothing: what a cell whose client has handed over no tools does with calls of the client's tools."""


class ToolCalls:
    """The calls of one cell."""

    def __init__(
        self,
        connection: Connection,
        tools: tuple[Tool, ...],
        emit: Callable[[dict[str, Any], int], None],
        stop: Callable[[QuotaExceeded], None],
        servers: CellServers | None = None,
    ) -> None:
        """Begin without calls.

        Args:
            connection: connection to the kernel of the cell.
            tools: tools of the client that the cell may call.
            emit: tells the client of a call, with the bytes of its arguments.
            stop: stops the cell, which has made too many calls.
            servers: the operator's servers, whose tools the cell may call, too. None means none.
        """
        self._connection = connection
        self._names = {tool.name for tool in tools}
        self._emit = emit
        self._stop = stop
        self._servers = servers
        #: calls of the servers' tools under way
        self._asking: set[asyncio.Task[None]] = set()
        #: calls by the id that the client knows. No kernel knows these ids, so only who was told of a call can answer.
        self._waiting: dict[str, _Waiting] = {}
        self._bytes = 0
        self._count = 0
        #: why calls are refused from now on. None means that they are not.
        self._over: str | None = None

    def called(self, message: Message) -> None:
        """Take a call of the kernel: tell the client, ask a server of the operator, or refuse it."""
        match message.content:
            case {"call": str(call), **asked} if len(call) <= NAME_MAX:
                pass
            case _:  # code has forged it, and nobody waits for its answer
                return
        self._count += 1
        if self._count > CALLS_MAX:
            self._stop(QuotaExceeded(f"the cell called tools more than {CALLS_MAX} times", max=CALLS_MAX))
            return
        servers, size = self._servers, message.size
        match asked:
            case {"server": str(server), "name": str(name), "arguments": dict(arguments)} if servers is not None:
                self._ask(call, size, name, partial(servers.call, server, name, arguments))
            case {"server": str(server)} if servers is not None:
                self._ask(call, size, server, partial(servers.listed, server))
            case {"server": _}:
                self._fail(call, _ERROR, "this cell has no servers of tools")
            case {"name": str(name), "arguments": dict(arguments)}:
                self._tell(call, size, name, arguments)

    def _tell(self, call: str, size: int, name: str, arguments: dict[str, Any]) -> None:
        """Tell the client of a call."""
        unknown = f"the client of this cell has handed over no tool {name[:NAME_MAX]!r}"
        problem = self._over or (None if name in self._names else unknown) or self._refusal(name, size)
        if problem is not None:
            self._fail(call, _ERROR, problem)
            return
        known = secrets.token_hex(8)
        self._waiting[known] = _Waiting(call, size)
        self._bytes += size
        self._emit({"type": "tool_call", "call": known, "name": name, "arguments": arguments}, size)

    def _ask(self, call: str, size: int, name: str, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask a server of the operator, in the background."""
        if (problem := self._refusal(name, size)) is not None:
            self._fail(call, _ERROR, problem)
            return
        self._bytes += size
        task = spawn(self._answered(call, ask), "call of a tool")
        self._asking.add(task)
        task.add_done_callback(partial(self._asked, call, size))

    async def _answered(self, call: str, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            value = await ask()
        except ToolFailed as error:
            self._fail(call, _ERROR, str(error))
        else:
            self._return(call, value)

    def _asked(self, call: str, size: int, task: asyncio.Task[None]) -> None:
        """Forget a call whose task has ended. Its cell always gets an answer, also if the gateway has a defect."""
        self._asking.discard(task)
        self._bytes -= size
        if not task.cancelled() and task.exception() is not None:
            self._fail(call, _ERROR, "the gateway has failed; its log says how")

    def _refusal(self, name: str, size: int) -> str | None:
        if size > CALL_BYTES_MAX:
            return f"the arguments of {name[:NAME_MAX]} are too large: a call has at most {CALL_BYTES_MAX} bytes"
        if len(self._waiting) + len(self._asking) >= WAITING_MAX:
            return f"{WAITING_MAX} calls of this cell already wait for their answers"
        if self._bytes + size > WAITING_BYTES_MAX:
            return f"the calls that wait have more than {WAITING_BYTES_MAX} bytes of arguments together"
        return None

    def waits(self, known: str) -> bool:
        """Return whether the call with this id has no answer yet."""
        return known in self._waiting

    def answer(self, known: str, value: Any) -> None:
        """Give a call its answer.

        Raises:
            InvalidRequest: when no such call waits, or the answer is too large or nested too deeply. In the latter
                cases the call ends with an error, too.
        """
        if (problem := self._return(self._take(known).call, value)) is not None:
            raise InvalidRequest(problem, field="value")

    def _return(self, call: str, value: Any) -> str | None:
        """Send the kernel an answer. If the answer cannot be sent, send an error in its place, and return its text."""
        try:
            text = exact_json.dumps(value)
        except orjson.JSONEncodeError:
            text = None
        if text is None or len(text) > ANSWER_BYTES_MAX:
            problem = f"the answer has more than {ANSWER_BYTES_MAX} bytes or too many levels"
            self._fail(call, _ERROR, problem)
            return problem
        self._reply({"call": call, "status": "ok", "value": text.decode()})
        return None

    def fail(self, known: str, name: str, text: str) -> None:
        """End a call with the error that the tool has raised.

        Raises:
            InvalidRequest: when no such call waits.
        """
        self._fail(self._take(known).call, name, text)

    def close(self, reason: str) -> None:
        """End all calls that wait for the client with an error, and refuse those to come: nobody answers them."""
        self._over = reason
        for each in self._waiting.values():
            self._bytes -= each.size
            self._fail(each.call, _ERROR, reason)
        self._waiting = {}

    def end(self, reason: str = "the cell has ended") -> None:
        """End all calls, because nobody waits for the cell, and forget it: nothing is told or stopped any more."""
        self.close(reason)
        for task in self._asking:
            task.cancel()
        self._servers = None
        self._emit, self._stop = ignore, ignore

    def _take(self, known: str) -> _Waiting:
        waiting = self._waiting.pop(known, None)
        if waiting is None:
            raise InvalidRequest("no call of a tool with this id waits for its answer", field="tool_call")
        self._bytes -= waiting.size
        return waiting

    def _fail(self, call: str, name: str, text: str) -> None:
        self._reply({"call": call, "status": "error", "ename": name, "evalue": text[:ERROR_MAX]})

    def _reply(self, content: dict[str, Any]) -> None:
        try:
            self._connection.send("control", TOOL_REPLY, content)
        except ConnectionFailed:  # the kernel does not read; its cell ends at its deadline
            self._over = "the kernel does not read the answers of its calls"
