"""The messages that wait for one channel client: bounded, in order, kept while the client is away.

A client that does not read holds up the kernel's output for a moment. Then output is left out for this client, and a
message marks the place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson

from sessions.channels.unread import MESSAGE_COST, Unread
from sessions.kernels.messages import Message
from sessions.model.errors import SessionError

MIB = 1024**2
#: bytes that may wait for one client; beyond, output is left out
QUEUE_MAX = 4 * MIB
#: bytes that may wait before a message of any size, which is then still queued
SMALL = 1 * MIB
#: further bytes for messages that a client needs: replies, questions and statuses
RESERVE = 1 * MIB
#: bytes that may wait before the kernel must wait, too
PRESSURE = 2 * MIB
#: session id in the gateway's own messages
_OUR_SESSION = uuid4().hex
_LEFT_OUT = "\n[kernel-gateway: output was left out here, because this client did not read it in time]\n"


def gateway_message(
    channel: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None
) -> Message:
    """Return a message of the gateway itself to the clients of a kernel.

    Args:
        channel: channel of the message.
        msg_type: type of the message.
        content: content of the message.
        parent: header of the request that it answers.
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
    """Return the messages for a request that no kernel answers. A refused cell looks like a failed cell.

    Args:
        channel: channel of the request.
        header: header of the request.
        error: why the request is refused.

    Returns:
        the messages in order, the reply last.
    """
    shown = [f"{error.name}: {error.message}", error.resolution]  # some clients show nothing but the traceback
    content = {"status": "error", "ename": error.name, "evalue": error.message, "traceback": shown}
    reply = gateway_message(channel, header["msg_type"].removesuffix("_request") + "_reply", content, header)
    if header["msg_type"] != "execute_request":
        return [reply]
    idle = gateway_message("iopub", "status", {"execution_state": "idle"}, header)
    return [gateway_message("iopub", "error", content, header), idle, reply]


class Subscription:
    """The message queue of one client."""

    def __init__(
        self,
        client: str,
        on_relief: Callable[[], None],
        unread: Unread,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin empty.

        Args:
            client: id with which the client may return; empty: it never does.
            on_relief: called when the kernel need no longer wait for this client.
            unread: counts what waits for all clients of the session.
            disconnect: ends the client's connection at once.
        """
        self.client = client
        #: the client is connected
        self.attached = True
        #: the kernel may wait for the client
        self.patient = True
        #: messages that the client has taken
        self.taken = 0
        self._on_relief = on_relief
        self._count_all = unread
        self._disconnect = disconnect
        unread.enter(self)
        self._queue: deque[Message] = deque()
        self._bytes = 0
        #: the message that is being sent, until the next one is taken
        self._sending: Message | None = None
        #: bytes of the largest message since the queue was last empty
        self._largest = 0
        self._gap = False
        #: the subscription that has taken over from this one
        self._heir: Subscription | None = None
        self._closed = False
        self._cut = False
        self._news = asyncio.Event()

    @property
    def pressing(self) -> bool:
        """Whether the kernel must wait until the client has read."""
        return self.attached and self.patient and self._bytes > PRESSURE

    @property
    def unread(self) -> int:
        """Bytes that the client has not read; the one message that says so does not count."""
        sending = 0 if self._sending is None else _cost(self._sending)
        return sending + self._bytes if len(self._queue) > 1 or not self._cut else sending

    def cut(self) -> None:
        """Forget what the client has not read, and disconnect it, once. If it returns, it is told.

        What it missed is kept for its return, so this may happen again when its connection is gone.
        """
        is_connected = self.attached and not self._cut
        self._drop_all()
        self._cut = self._gap = True
        self._append(gateway_message("iopub", "stream", {"name": "stderr", "text": _LEFT_OUT}))
        if is_connected:
            self._disconnect()

    def discard(self) -> None:
        """Forget all messages: the client is gone for good."""
        self.close()
        self._drop_all()
        self._count_all.leave(self)

    def detach(self) -> None:
        """Note that the client's connection is gone, with what was being sent."""
        self.attached = False
        self._sent()

    def _drop_all(self) -> None:
        self._sent()
        self._forget_queue()

    def _forget_queue(self) -> None:
        while self._queue:
            message = self._queue.popleft()
            self._bytes -= _cost(message)
            self._count_all.remove(message)

    def enqueue(self, message: Message) -> None:
        """Queue a message, or leave it out when too much waits."""
        if self._closed:
            return
        if self._admits(message):
            self._append(message)
        elif not self._gap:
            self._gap = True
            self._append(gateway_message("iopub", "stream", {"name": "stderr", "text": _LEFT_OUT}, message.parent))

    def _admits(self, message: Message) -> bool:
        if message.channel != "iopub" or message.type == "status":
            return self._bytes <= QUEUE_MAX + self._largest + RESERVE
        # A large message is not left out because of small ones before it: the client has read in time.
        return self._bytes <= SMALL or self._bytes + _cost(message) <= QUEUE_MAX

    def _append(self, message: Message) -> None:
        self._queue.append(message.without_parsed_json())  # it may wait for long
        self._count(message)
        self._news.set()

    def _count(self, message: Message) -> None:
        self._bytes += _cost(message)
        self._largest = max(self._largest, _cost(message))
        self._count_all.add(message)

    def _sent(self) -> None:
        if self._sending is not None:
            self._count_all.copied(-self._sending.size)
            self._count_all.remove(self._sending)
            self._sending = None

    async def take(self) -> Message | None:
        """Wait for the next message to send. Its `parts` are complete, its other fields may be empty.

        Returns:
            the message; None when no more will follow.
        """
        self._sent()
        while not self._queue:
            if self._closed:
                self.discard()
                return None
            self._news.clear()
            await self._news.wait()
        message = self._queue.popleft()
        self._bytes -= _cost(message)
        self._sending = message
        self._count_all.copied(message.size)
        self.taken += 1
        if not self._queue:
            self._gap, self.patient, self._largest = False, True, 0
        if self._bytes <= PRESSURE // 2:
            self._on_relief()
        return message

    def put_back(self, message: Message) -> None:
        """Put back a message that was taken and could not be delivered; a client that has returned gets it."""
        self._sent()
        if self._heir is not None:
            self._heir.put_back(message)
            return
        if self._cut:
            return
        self._queue.appendleft(message)
        self._count(message)
        self._news.set()

    def inherit(self, other: Subscription) -> None:
        """Take the messages of another subscription, and close that."""
        messages = list(other._queue)
        other._heir = self
        other._forget_queue()
        other.close()
        if not other.attached:
            other.discard()
        for message in messages:
            self._append(message)
        self._gap = other._gap

    def close(self) -> None:
        """Accept no more messages; those that wait can still be taken."""
        self._closed = True
        self._news.set()
        self._on_relief()


def _cost(message: Message) -> int:
    return message.size + MESSAGE_COST
