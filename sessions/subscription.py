"""What one client of a kernel is still to be sent: bounded, in order, kept while the client is away.

A client that does not read holds up the kernel's output for a moment; then it is left out, and told where.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson

from sessions.errors import SessionError
from sessions.messages import Message

MIB = 1024**2
#: bytes that wait for one client; beyond, output is left out
QUEUE_MAX = 4 * MIB
#: bytes that wait and keep nothing out, however large it is
SMALL = 1 * MIB
#: bytes more for what a client cannot do without: replies, questions and statuses
RESERVE = 1 * MIB
#: bytes that wait before the kernel is made to wait as well
PRESSURE = 2 * MIB
#: bytes that a message costs besides its own
MESSAGE_COST = 1024
#: the session id of messages that the gateway itself makes
_OUR_SESSION = uuid4().hex
_LEFT_OUT = "\n[kernel-gateway: output was left out here, because this client did not read it in time]\n"


def announcement(channel: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None) -> Message:
    """A message of the gateway's own to the clients of a kernel.

    Args:
        channel: where it is heard.
        msg_type: its type.
        content: its content.
        parent: the header of the request that it answers.
    """
    header = {
        "msg_id": uuid4().hex,
        "msg_type": msg_type,
        "username": "gateway",
        "session": _OUR_SESSION,
        "date": datetime.now(UTC).isoformat(),
        "version": "5.4",
    }
    parts = tuple(orjson.dumps(part) for part in (header, parent or {}, {}, content))
    return Message(channel, header, parent or {}, {}, content, (), sum(map(len, parts)), parts)


def refusal(channel: str, header: dict[str, Any], error: SessionError) -> list[Message]:
    """What a client is told of a request that no kernel answers: a cell looks like one that failed.

    Args:
        channel: where it was asked.
        header: the request's.
        error: why.

    Returns:
        in order, the reply last.
    """
    shown = [f"{error.name}: {error.message}", error.resolution]  # the only thing that some clients show
    content = {"status": "error", "ename": error.name, "evalue": error.message, "traceback": shown}
    reply = announcement(channel, header["msg_type"].removesuffix("_request") + "_reply", content, header)
    if header["msg_type"] != "execute_request":
        return [reply]
    idle = announcement("iopub", "status", {"execution_state": "idle"}, header)
    return [announcement("iopub", "error", content, header), idle, reply]


class Subscription:
    """One client's queue."""

    def __init__(self, client: str, on_relief: Callable[[], None]) -> None:
        """Begin empty.

        Args:
            client: the id under which the client comes back; empty: it never does.
            on_relief: called when the kernel need not wait for this client any more.
        """
        self.client = client
        #: it is there and reads
        self.attached = True
        #: the kernel waits for it
        self.patient = True
        #: messages that it has taken
        self.taken = 0
        self._on_relief = on_relief
        self._queue: deque[Message] = deque()
        self._bytes = 0
        #: bytes of the largest message since nothing waited
        self._largest = 0
        self._gap = False
        self._closed = False
        self._news = asyncio.Event()

    @property
    def pressing(self) -> bool:
        """Whether the kernel is to wait until it has read."""
        return self.attached and self.patient and self._bytes > PRESSURE

    def feed(self, message: Message) -> None:
        """Add a message, or leave it out when too much waits."""
        if self._closed:
            return
        if self._admits(message):
            self._append(message)
        elif not self._gap:
            self._gap = True
            self._append(announcement("iopub", "stream", {"name": "stderr", "text": _LEFT_OUT}, message.parent))

    def _admits(self, message: Message) -> bool:
        if message.channel != "iopub" or message.type == "status":
            return self._bytes <= QUEUE_MAX + self._largest + RESERVE
        # What is large is not left out because something small stands before it: the client did read in time.
        return self._bytes <= SMALL or self._bytes + _cost(message) <= QUEUE_MAX

    def _append(self, message: Message) -> None:
        # The first is on its way at once; what stands behind it may wait for long.
        self._queue.append(message.as_it_came() if self._queue else message)
        self._count(message)
        self._news.set()

    def _count(self, message: Message) -> None:
        self._bytes += _cost(message)
        self._largest = max(self._largest, _cost(message))

    async def take(self) -> Message | None:
        """Wait for the next message, as it is to be sent: its `parts` are whole, its other fields may be empty.

        Returns:
            None when there will be no more.
        """
        while not self._queue:
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._queue.popleft()
        self._bytes -= _cost(message)
        self.taken += 1
        if not self._queue:
            self._gap, self.patient, self._largest = False, True, 0
        if self._bytes <= PRESSURE // 2:
            self._on_relief()
        return message

    def give_back(self, message: Message) -> None:
        """It was taken and could not be delivered."""
        self._queue.appendleft(message)
        self._count(message)

    def inherit(self, other: Subscription) -> None:
        """Take over what waited for another one, which is closed."""
        for message in other._queue:
            self._append(message)
        self._gap = other._gap
        other._queue.clear()
        other.close()

    def close(self) -> None:
        """Take no more; what waits can still be taken."""
        self._closed = True
        self._news.set()
        self._on_relief()


def _cost(message: Message) -> int:
    return message.size + MESSAGE_COST
