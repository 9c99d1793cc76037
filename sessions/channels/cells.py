"""Cells of channel clients: their code, their request, and their end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

import orjson

from kernel_image.protocol import EXTRAS, TOOL_CALL
from sessions.cells.cell import Cell
from sessions.cells.outputs import output_size
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model import bounded_json, exact_json
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.values import ExecuteRequest, ExecutionEnd, StateChange, Timeouts
from sessions.tools.calls import GATEWAY_STOPPED, ToolCalls, ignore
from sessions.tools.servers import CellServers


@dataclass(frozen=True, slots=True)
class Code:
    """The code of an execute request, and the expressions that it evaluates afterwards."""

    text: str
    expressions: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of memory that the code takes. A character takes up to four bytes."""
        return sum(map(sys.getsizeof, (self.text, *self.expressions)))

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Read the content of an execute request.

        Raises:
            InvalidRequest: when the content is no valid JSON. A kernel may be less strict, and would run code that the
                gateway has not seen.
        """
        with suppress(orjson.JSONDecodeError):
            match bounded_json.loads(content):
                case {"code": str(code), "user_expressions": dict(expressions)}:
                    return cls(code, tuple(map(str, expressions.values())))
                case {"code": str(code)}:
                    return cls(code)
        raise InvalidRequest("the content of an execute_request must be valid JSON, its code text", field="code")


@dataclass(frozen=True, slots=True)
class Submission:
    """An execute request of a channel client."""

    #: message id and message type of the request
    header: dict[str, str]
    #: the request in the form of the audit
    request: ExecuteRequest
    #: the execution's id in the audit
    execution_id: str
    #: bytes that count towards the tenant's limit until the cell has ended
    size: int
    #: whether the code runs in a subshell: the kernel's main shell answers other requests meanwhile
    in_subshell: bool


class CellOwner(Protocol):
    """Gets the events of channel clients' cells."""

    def expire(self, cell: ChannelCell) -> None:
        """The cell has reached its deadline."""

    def stop(self, cell: ChannelCell, error: SessionError) -> None:
        """The cell has done what it must not do."""

    def miss_reply(self, cell: ChannelCell) -> None:
        """The kernel will never reply to the cell."""

    def ended(self, cell: ChannelCell) -> None:
        """The cell has ended."""


class ChannelCell(Cell):
    """A cell that a channel client has sent."""

    def __init__(
        self, kernel: Kernel, timeouts: Timeouts, owner: CellOwner, submission: Submission, servers: CellServers
    ) -> None:
        """Prepare a cell; `start` begins its deadline.

        Args:
            kernel: runs it.
            timeouts: timeouts of its end.
            owner: gets the events of the cell.
            submission: request of the client.
            servers: the operator's servers of tools, as the cell may use them.
        """
        super().__init__(kernel, timeouts, exclusive=False)
        self.header = submission.header
        self.request = submission.request
        self.execution_id = submission.execution_id
        self.size = submission.size
        self._in_subshell = submission.in_subshell
        self._owner = owner
        self._output_bytes = 0
        self._kernel_gone = False
        self._servers = servers
        self._tools = ToolCalls(kernel.connection, (), ignore, partial(owner.stop, self), servers)

    @property
    def id(self) -> str:
        """The message id of the client's request."""
        return self.header["msg_id"]

    @property
    def stopped(self) -> bool:
        """Whether the gateway stopped the cell."""
        return self._stopped is not None

    @property
    def waits(self) -> bool:
        """Whether the cell has not begun if the kernel runs an earlier one. Cells in subshells run beside others."""
        return not self._output_seen and not self._in_subshell

    def with_servers(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        """Return the parts of its request, with the names of the operator's servers in the content.

        A cell in a subshell has none: a kernel has one module `tools`, which would be that of the cell beside it.
        """
        names = self._servers.names
        if not names or self._in_subshell or not self.kernel.launch.kernelspec.tools:
            return parts
        extras = exact_json.dumps({EXTRAS: {"tool_servers": [*names]}})
        content = extras.removesuffix(b"}") + b"," + parts[3].lstrip().removeprefix(b"{")
        return (*parts[:3], content)

    def take_output(self, message: Message) -> None:
        """Take a message that the kernel has published for this cell."""
        if message.type == TOOL_CALL:
            self._tools.called(message)
        self._output_bytes += output_size(message)
        self.published(message)

    def kernel_gone(self, cause: SessionError) -> None:
        """End the cell, because the kernel has ended with all variables."""
        self._kernel_gone = True
        super().kernel_gone(cause)

    def release(self) -> bool:
        """Stop to watch the cell, as `Cell.release` does."""
        runs_on = super().release()
        if runs_on:
            self._tools.end(GATEWAY_STOPPED)
        return runs_on

    def end(self) -> ExecutionEnd:
        """Return the end of the cell for the audit."""
        if self.status is None:
            raise RuntimeError("the cell has not ended")
        return ExecutionEnd(
            status=self.status,
            duration=self.duration,
            state=StateChange.LOST if self._kernel_gone else StateChange.PRESERVED,
            truncated=self.incomplete,
            error=self.error,
            output_bytes=self._output_bytes,
            memory=self.memory,
        )

    def _doubt_reply(self) -> None:
        if not self._in_subshell:
            super()._doubt_reply()

    def _expire(self) -> None:
        self._owner.expire(self)

    def _miss_reply(self) -> None:
        self._owner.miss_reply(self)

    def _on_end(self) -> None:
        self._tools.end()
        self._owner.ended(self)
