"""The messages that wait for one channel client: bounded, in order, and kept while the client is away.

The kernel's output waits for a slow client for a short time. Then output is left out for this client, and a message
marks the place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson

from sessions.channels.unread import Backlog, Unread, cost
from sessions.kernels.messages import Message
from sessions.model.errors import SessionError

MIB = 1024**2
#: bytes that may wait for one client; further output is left out
QUEUE_MAX = 4 * MIB
#: if fewer bytes wait than this, a message of any size is queued
SMALL = 1 * MIB
#: further bytes for messages that a client needs: replies, questions and statuses
RESERVE = 1 * MIB
#: bytes that may wait for a client before the kernel's output must wait
PRESSURE = 2 * MIB
#: session id in the gateway's own messages
_OUR_SESSION = uuid4().hex
_LEFT_OUT = "\n[kernel-gateway: output was left out here, because this client did not read it in time]\n"


def gateway_message(
    channel: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None
) -> Message:
    """Return a message that the gateway itself sends to the clients of a kernel.

    Args:
        channel: channel of the message.
        msg_type: type of the message.
        content: content of the message.
        parent: header of the request that it answers. None means that it answers no request.
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


@dataclass(slots=True)
class _Lag:
    """State of a client that has not read everything. It begins anew when the client has read everything."""

    #: whether output was left out, and a message marks the place
    gap: bool = False
    #: whether the kernel's output no longer waits for the client
    kernel_continues: bool = False
    #: bytes of the largest message since then
    largest: int = 0


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
            client: id with which the client may return. Empty means that it cannot return.
            on_relief: called when the kernel's output no longer has to wait for this client.
            unread: counts the messages that wait for all clients of the session.
            disconnect: function that ends the client's connection at once.
        """
        self.client = client
        #: whether the client is connected
        self.attached = True
        #: number of messages that the client has taken
        self.taken = 0
        self._on_relief = on_relief
        self._unread = unread
        self._disconnect = disconnect
        unread.enter(self)
        self._backlog = Backlog(unread)
        self._lag = _Lag()
        #: the subscription that has taken over from this one
        self._heir: Subscription | None = None
        # These two and `attached` are independent: a session can end while a client that was cut is away.
        #: whether no more messages are accepted
        self._closed = False
        #: whether unread messages were dropped, and the client was disconnected for that
        self._was_cut = False
        self._news = asyncio.Event()

    @property
    def holds_up_kernel(self) -> bool:
        """Whether the kernel's output must wait until the client has read more."""
        return self.attached and not self._lag.kernel_continues and self._backlog.size > PRESSURE

    def let_kernel_continue(self) -> None:
        """Let the kernel's output continue without this client, until the client has read everything."""
        self._lag.kernel_continues = True

    @property
    def unread(self) -> int:
        """Bytes that the client has not read. After `drop_unread`, its own message does not count."""
        counts = len(self._backlog) > 1 or not self._was_cut
        return self._backlog.sending + (self._backlog.size if counts else 0)

    def drop_unread(self) -> None:
        """Drop all unread messages, and disconnect the client. If it returns, it is told that output was left out.

        Later messages are kept for the client's return. Another call drops them, too.
        """
        is_connected = self.attached and not self._was_cut
        self._drop_all()
        self._was_cut = self._lag.gap = True
        self._append(gateway_message("iopub", "stream", {"name": "stderr", "text": _LEFT_OUT}))
        if is_connected:
            self._disconnect()

    def discard(self) -> None:
        """Drop all messages, because the client cannot return."""
        self.close()
        self._drop_all()
        self._unread.leave(self)

    def detach(self) -> None:
        """Record that the client's connection has ended, and drop the message that was being sent."""
        self.attached = False
        self._backlog.sent()

    def _drop_all(self) -> None:
        self._backlog.sent()
        self._backlog.take_all()

    def enqueue(self, message: Message) -> None:
        """Queue a message, or leave it out when too many bytes wait."""
        if self._closed:
            return
        if self._admits(message):
            self._append(message)
        elif not self._lag.gap:
            self._lag.gap = True
            self._append(gateway_message("iopub", "stream", {"name": "stderr", "text": _LEFT_OUT}, message.parent))

    def _admits(self, message: Message) -> bool:
        if message.channel != "iopub" or message.type == "status":
            return self._backlog.size <= QUEUE_MAX + self._lag.largest + RESERVE
        # A large message is not left out because of a few small messages before it: the client is not slow.
        return self._backlog.size <= SMALL or self._backlog.size + cost(message) <= QUEUE_MAX

    def _append(self, message: Message) -> None:
        self._backlog.append(message.without_parsed_json())  # parsed content would take memory while the message waits
        self._lag.largest = max(self._lag.largest, cost(message))
        self._news.set()

    async def take(self) -> Message | None:
        """Wait for the next message to send. Its `parts` are complete; its other fields may be empty.

        Returns:
            the message. None means that no more messages will follow.
        """
        self._backlog.sent()
        while not self._backlog:
            if self._closed:
                self.discard()
                return None
            self._news.clear()
            await self._news.wait()
        message = self._backlog.send_next()
        self.taken += 1
        if not self._backlog:
            self._lag = _Lag()
        if self._backlog.size <= PRESSURE // 2:
            self._on_relief()
        return message

    def put_back(self, message: Message) -> None:
        """Put back a message that was taken and could not be delivered. A client that has returned gets it."""
        self._backlog.sent()
        if self._heir is not None:
            self._heir.put_back(message)
            return
        if self._was_cut:
            return
        self._backlog.put_back(message)
        self._lag.largest = max(self._lag.largest, cost(message))
        self._news.set()

    def inherit(self, other: Subscription) -> None:
        """Take the messages of an earlier subscription of the client, and close that subscription."""
        for message in other._hand_over(self):
            self._append(message)
        self._lag.gap = other._lag.gap

    def _hand_over(self, heir: Subscription) -> list[Message]:
        """Close this subscription, and return its messages for the subscription that takes over."""
        messages = self._backlog.take_all()
        self._heir = heir
        self.close()
        if not self.attached:
            self.discard()
        return messages

    def close(self) -> None:
        """Accept no more messages. Waiting messages can still be taken."""
        self._closed = True
        self._news.set()
        self._on_relief()
