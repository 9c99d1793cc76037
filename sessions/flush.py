"""Puts the end of a cell behind its output, for a kernel that says `idle` too early.

Such a kernel (Deno's) queues a cell's output, and tells of the cell's end past that queue. So the end is held back
until the kernel was asked to publish one more message, `flushed`, by the same queue, and has also replied: then all
that the cell has to say on either channel is there, however far one of them is behind the other. Cells are sent one by
one meanwhile, because the kernel names the latest as the parent of whatever leaves the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from sessions.messages import Message

#: type of the message that the kernelspec's `flush` publishes
FLUSHED = "flushed"
#: seconds until the kernel is asked again: the answer may have been lost with a connection
RETRY = 1.0
#: messages that may be held back meanwhile, and their bytes; whoever says more gets no order
HELD_MESSAGES = 256
HELD_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Line:
    """What it needs of the connection."""

    #: asks the kernel to flush; the request's id
    ask: Callable[[], str]
    #: sends what had to wait
    send: Callable[[list[bytes]], None]
    #: hands a message on
    deliver: Callable[[Message], None]


class Flush:
    """One connection's cells, one at a time."""

    def __init__(self, line: Line) -> None:
        self._line = line
        #: a cell was sent, and has not ended
        self._running = False
        #: cells that wait until it has
        self._waiting: deque[list[bytes]] = deque()
        #: the cell that ended last: a message that names it as its parent
        self._cell: Message | None = None
        #: requests to flush its output, and the channels on which one of them was answered
        self._asked: set[str] = set()
        self._answers: set[str] = set()
        #: what must not be told before that
        self._held: list[Message] = []
        self._output_lost = False
        self._failure: Message | None = None
        self._shown_error = False
        self._retry: asyncio.TimerHandle | None = None

    def admits(self, msg_type: object, frames: list[bytes]) -> bool:
        """Whether a request may be sent now; else it is when it is its turn."""
        if msg_type != "execute_request":
            return True
        if self._running:
            self._waiting.append(frames)
            return False
        self._running = True
        return True

    def not_sent(self) -> None:
        """The cell that was admitted could not be sent."""
        self._running = False

    def output_lost(self) -> None:
        """The connection of iopub was dropped: what the cell has shown is incomplete."""
        self._output_lost = self._running

    def feed(self, message: Message) -> None:
        """Take in what the kernel says on shell or iopub."""
        if message.parent_id in self._asked:
            self._answered(message)
        elif _ends_cell(message):
            self._ended(message)
        elif self._retry is not None and (message.channel == "shell" or message.type == "status"):
            self._hold(message)  # what it says to later questions is proof that the cell has ended
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
            # Output of the cell before it, also if it comes when that is long over.
            header = self._cell.parts[1:2]
            parts = (*message.parts[:1], *header, *message.parts[2:])
            self._shown_error |= message.type == "error"
            self._line.deliver(replace(message, parent=self._cell.parent, parts=parts))

    def _release(self) -> None:
        if self._retry is None:
            return
        self.close()
        # Without its `idle` the cell is known to be incomplete.
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
        """Ask no more."""
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
    """A cell's failure as an output, where the kernel has only replied with it."""
    content = {name: reply.content.get(name) for name in ("ename", "evalue", "traceback")}
    header = reply.header | {"msg_type": "error"}
    parts = (orjson.dumps(header), *reply.parts[1:3], orjson.dumps(content))
    return replace(reply, channel="iopub", header=header, content=content, buffers=(), parts=parts)
