"""A request of a channel client, and the rules for the cells among such requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sessions.channels.cells import ChannelCell, Code
from sessions.channels.subscription import Subscription
from sessions.model.values import ExecuteRequest, ExecutionEnd, Timeouts


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that the kernel has not answered."""

    client: Subscription
    id: str
    type: str
    size: int
    #: the kernel runs it beside its main shell
    in_subshell: bool = False
    #: code of an execute request; None for other requests
    code: Code | None = None
    #: the cell of an execute request, once it is admitted
    cell: ChannelCell | None = None
    #: questions of the kernel that its client may answer
    open_inputs: int = 0

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

    #: counts an execution of the tenant; all cells together count as one, because a front end sends a whole notebook
    admit: Callable[[], AbstractContextManager[None]]
    #: raises `QuotaExceeded` when the tenant has used up its quota
    permit: Callable[[], None]
    #: counts bytes more that wait for the kernel, or fewer; returns False if the tenant would then have too many
    hold: Callable[[int], bool]
    #: called with each cell before it is sent; returns the execution's id, or raises to refuse the cell
    begins: Callable[[ExecuteRequest], str]
    #: called when a cell has ended; the end is None when it was never sent
    ended: Callable[[str, ExecuteRequest, ExecutionEnd | None], None]
    #: called with the message id and the error of each cell that has failed: the kernel may not have shown the error
    failed: Callable[[str, Mapping[str, Any]], None]
    timeouts: Timeouts
    #: seconds that a cell may run
    deadline: float
