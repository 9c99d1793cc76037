"""A request of a channel client, and the rules for the cells among such requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sessions.cells.execution import Question
from sessions.channels.cells import ChannelCell, Code
from sessions.channels.subscription import Subscription
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import SessionError
from sessions.model.values import ExecuteRequest, ExecutionEnd, Timeouts
from sessions.tools.servers import CellServers


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that the kernel has not answered."""

    client: Subscription
    id: str
    type: str
    size: int
    #: whether the kernel runs the request in a subshell
    in_subshell: bool = False
    #: code of an execute request; None for other requests
    code: Code | None = None
    #: cell of an execute request; None for other requests, and before the cell is admitted
    cell: ChannelCell | None = None
    #: number of the kernel's questions that the client has not answered
    open_inputs: int = 0
    #: what its code has asked last, and the parent header of an answer
    asked: Question | None = None
    asked_by: dict[str, Any] = field(default_factory=dict)

    def count_question(self, message: Message) -> None:
        """Count a question of the kernel."""
        self.open_inputs += 1
        self.asked = Question.of(message.content, 1 if self.asked is None else self.asked.number + 1)
        self.asked_by = {name: message.header[name] for name in ("msg_id", "msg_type")}

    @property
    def question(self) -> Question | None:
        """What its code asks now. None means that it waits for no answer."""
        return self.asked if self.open_inputs else None

    def count_answer(self) -> None:
        """Count the client's answer to a question of the kernel."""
        self.open_inputs -= 1

    def run_as(self, cell: ChannelCell) -> None:
        """Set the cell that runs the request's code."""
        self.cell = cell

    def hand_over(self, client: Subscription) -> None:
        """Send the answers to this client from now on."""
        self.client = client

    def stop_counting(self) -> None:
        """Count no more bytes, because the kernel has handled the request."""
        self.size = 0

    @property
    def has_reply(self) -> bool:
        """Whether the kernel sends a reply besides `idle`. Source: "Messaging in Jupyter", custom messages."""
        return not self.type.startswith("comm_") or self.type.endswith("_request")

    @property
    def header(self) -> dict[str, str]:
        """The parent header by which the client recognises an answer."""
        return {"msg_id": self.id, "msg_type": self.type}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for the cells of one session's channel clients."""

    #: counts an execution of the tenant. All waiting cells count as one: a front end may send a whole notebook.
    admit: Callable[[], AbstractContextManager[None]]
    #: raises `QuotaExceeded` when the tenant has used up its quota
    permit: Callable[[], None]
    #: counts bytes that wait for the kernel; a number below 0 takes bytes away. Returns False, and counts nothing, if
    #: the tenant would have too many
    count_bytes: Callable[[int], bool]
    #: called with each cell before it is sent. Returns the execution's id, or raises an error to refuse the cell.
    begins: Callable[[ExecuteRequest], str]
    #: called when a cell has ended. The end is None when the cell was never sent.
    ended: Callable[[str, ExecuteRequest, ExecutionEnd | None], None]
    #: called with the execution's id when the gateway ends before the cell
    left: Callable[[str], None]
    #: called with message id and errors of each failed cell: the error of its code, which the kernel may not have
    #: published, and the gateway's error, if the gateway ended the cell or the kernel ended
    failed: Callable[[str, Mapping[str, Any] | None, SessionError | None], None]
    #: returns the operator's servers of tools, as the cell of an execution's id may use them
    servers: Callable[[str], CellServers]
    #: called before a client's message starts the debugger of the kernel; may raise an error to refuse the message
    debugs: Callable[[Kernel], None]
    timeouts: Timeouts
    #: seconds that a cell may run
    deadline: float
