"""Delivers the end of a cell after its output, for a kernel that sends `idle` too early.

Such a kernel (Deno's) queues a cell's output, but the message about the cell's end bypasses that queue. So the gateway
holds this message back, and asks the kernel to publish one more message, `flushed`, through the same queue. When it and
the reply to the request have arrived, all messages of the cell have arrived on both channels, even if one channel is
slower. Cells are sent one at a time, because the kernel names the latest cell as the parent of all queued messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from kernel_image.protocol import FLUSHED
from sessions.kernels.messages import Message

#: seconds until the kernel is asked again, because an answer may be lost with a connection
RETRY = 1.0
#: maximum number of messages that are held back, and their maximum bytes; then all are delivered without `flushed`
HELD_MESSAGES = 256
HELD_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class BarrierActions:
    """The functions of the connection that the barrier needs."""

    #: asks the kernel to flush, and returns the request's id
    ask: Callable[[], str]
    #: sends the frames of a cell that had to wait
    send: Callable[[list[bytes]], None]
    #: delivers a message
    deliver: Callable[[Message], None]


class IdleBarrier:
    """Orders the messages of one connection's cells, and sends the cells one at a time."""

    def __init__(self, line: BarrierActions) -> None:
        self._line = line
        #: whether a cell was sent and has not ended
        self._running = False
        #: frames of the cells that wait for this end
        self._waiting: deque[list[bytes]] = deque()
        #: a message whose parent is the cell that ended last
        self._cell: Message | None = None
        #: ids of the requests to flush that cell's output, and the channels on which the kernel has answered one
        self._asked: set[str] = set()
        self._answers: set[str] = set()
        #: messages that are held back until both channels have answered
        self._held: list[Message] = []
        self._output_lost = False
        self._failure: Message | None = None
        self._shown_error = False
        self._retry: asyncio.TimerHandle | None = None

    def admits(self, msg_type: object, frames: list[bytes]) -> bool:
        """Return whether a request may be sent now. Otherwise it is a cell, which is sent when its turn comes."""
        if msg_type != "execute_request":
            return True
        if self._running:
            self._waiting.append(frames)
            return False
        self._running = True
        return True

    def not_sent(self) -> None:
        """Record that the admitted cell could not be sent."""
        self._running = False

    def output_lost(self) -> None:
        """Record that output of the running cell may be lost, because iopub has lost its connection."""
        self._output_lost = self._running

    def pass_on(self, message: Message) -> None:
        """Deliver a message of shell or iopub, or hold it back."""
        if message.parent_id in self._asked:
            self._answered(message)
        elif _ends_cell(message):
            self._ended(message)
        elif self._retry is not None and (message.channel == "shell" or message.type == "status"):
            self._hold(message)  # an answer to a later request would show clients that the cell has ended
        else:
            self._shown_error |= message.type == "error"
            self._line.deliver(message)

    def _ended(self, message: Message) -> None:
        self._hold(message)
        if message.channel == "shell" and message.content.get("status") == "error":
            self._failure = message
        if self._retry is None:
            self._cell = message
            self._asked.clear()
            self._answers.clear()
            self._ask()

    def _hold(self, message: Message) -> None:
        self._held.append(message)
        if len(self._held) > HELD_MESSAGES or sum(held.size for held in self._held) > HELD_BYTES:
            self._release()

    def _ask(self) -> None:
        self._asked.add(self._line.ask())
        self._retry = asyncio.get_running_loop().call_later(RETRY, self._ask)

    def _answered(self, message: Message) -> None:
        if message.type == FLUSHED or message.channel == "shell":
            self._answers.add(message.channel)
            if len(self._answers) == len(("iopub", "shell")):
                self._release()
        elif message.channel == "iopub" and message.type not in {"status", "execute_input"} and self._cell is not None:
            # This is late output of the ended cell. The kernel has named the flush request as its parent.
            header = self._cell.parts[1:2]
            parts = (*message.parts[:1], *header, *message.parts[2:])
            self._shown_error |= message.type == "error"
            self._line.deliver(replace(message, parent=self._cell.parent, parts=parts))

    def _release(self) -> None:
        if self._retry is None:
            return
        self.close()
        # If output was lost, `idle` is not delivered. A cell without `idle` counts as incomplete.
        held = [message for message in self._held if not (self._output_lost and _is_idle(message))]
        if self._failure is not None and not self._shown_error:
            held.insert(0, _error(self._failure))
        self._held, self._failure = [], None
        self._shown_error = self._output_lost = self._running = False
        for message in held:
            self._line.deliver(message)
        if self._waiting and not self._running:
            self._running = True
            self._line.send(self._waiting.popleft())

    def close(self) -> None:
        """Stop asking the kernel to flush."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


def _ends_cell(message: Message) -> bool:
    if message.parent.get("msg_type") != "execute_request":
        return False
    return message.channel == "shell" or _is_idle(message)


def _is_idle(message: Message) -> bool:
    return message.channel == "iopub" and message.content.get("execution_state") == "idle"


def _error(reply: Message) -> Message:
    """Return the error of a cell's reply as an output, for a kernel that has not published it."""
    content = {name: reply.content.get(name) for name in ("ename", "evalue", "traceback")}
    header = reply.header | {"msg_type": "error"}
    parts = (orjson.dumps(header), *reply.parts[1:3], orjson.dumps(content))
    return replace(reply, channel="iopub", header=header, content=content, buffers=(), parts=parts)
