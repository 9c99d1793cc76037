"""The messages that the channel clients of one session have not read, counted as bytes of the gateway's memory.

A message that waits for several clients is held once, and counts once. A message that is being sent is copied for each
client, and each copy counts. When the clients of a tenant's sessions together have too many unread bytes, the client
with the most unread bytes is disconnected. It loses its messages, and is told about that when it returns.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

from sessions.kernels.messages import Message
from sessions.tenants.kept_bytes import KeptBytes

#: bytes that a message takes for each client, in addition to its content
MESSAGE_COST = 1024


class Reader(Protocol):
    """A client that messages wait for."""

    @property
    def unread(self) -> int:
        """Bytes that the client has not read. Messages that also wait for other clients count in full."""

    def drop_unread(self) -> None:
        """Drop the unread messages, and disconnect the client."""


class Unread:
    """The bytes that wait for the clients of one session."""

    def __init__(self, kept: KeptBytes, tenant: str) -> None:
        """Begin without clients.

        Args:
            kept: counts the bytes of all sessions.
            tenant: tenant of the session.
        """
        self._share = kept.share(tenant, self._cut_slowest)
        #: number of clients that a message waits for, by the identity of its `parts`: all copies share this tuple
        self._waiting: Counter[int] = Counter()
        self._readers: dict[Reader, None] = {}
        self._closed = False

    def enter(self, reader: Reader) -> None:
        """Add a client. Its unread bytes count from now on."""
        self._readers[reader] = None

    def leave(self, reader: Reader) -> None:
        """Remove a client that no message waits for any more."""
        self._readers.pop(reader, None)
        self._close_if_done()

    def add(self, message: Message) -> None:
        """Count a message that waits for one more client."""
        known = id(message.parts)
        self._waiting[known] += 1
        self._share.grow(MESSAGE_COST + (message.size if self._waiting[known] == 1 else 0))

    def remove(self, message: Message) -> None:
        """Count a message that waits for one client fewer."""
        known = id(message.parts)
        self._waiting[known] -= 1
        if self._waiting[known]:
            self._share.grow(-MESSAGE_COST)
        else:
            del self._waiting[known]
            self._share.grow(-MESSAGE_COST - message.size)

    def copied(self, size: int) -> None:
        """Count the bytes of a copy that is being sent. A number below 0 takes away a copy that was sent."""
        self._share.grow(size)

    def close(self) -> None:
        """Accept no more clients. The messages that wait for present clients still count."""
        self._closed = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._closed and not self._readers:
            self._share.close()

    def _cut_slowest(self) -> bool:
        slowest = max(self._readers, key=lambda reader: reader.unread, default=None)
        if slowest is None or not slowest.unread:
            return False
        slowest.drop_unread()
        return True


class Backlog:
    """The messages that wait for one client, and the message that is being sent to it. Their bytes are counted here."""

    def __init__(self, unread: Unread) -> None:
        """Begin empty.

        Args:
            unread: counts what waits for all clients of the session.
        """
        self._unread = unread
        self._queue: deque[Message] = deque()
        self._sending: Message | None = None
        #: bytes of the messages that wait
        self.size = 0

    def __len__(self) -> int:
        """Return the number of messages that wait."""
        return len(self._queue)

    @property
    def sending(self) -> int:
        """Bytes of the message that is being sent."""
        return 0 if self._sending is None else cost(self._sending)

    def append(self, message: Message) -> None:
        """Add a message behind all others."""
        self._queue.append(message)
        self._count(message)

    def put_back(self, message: Message) -> None:
        """Add a message before all others."""
        self._queue.appendleft(message)
        self._count(message)

    def _count(self, message: Message) -> None:
        self.size += cost(message)
        self._unread.add(message)

    def send_next(self) -> Message:
        """Return the first message. It counts until `sent`."""
        message = self._queue.popleft()
        self.size -= cost(message)
        self._sending = message
        self._unread.copied(message.size)
        return message

    def sent(self) -> None:
        """Forget the message that was being sent, if there is one."""
        if self._sending is not None:
            self._unread.copied(-self._sending.size)
            self._unread.remove(self._sending)
            self._sending = None

    def take_all(self) -> list[Message]:
        """Remove the messages that wait, and return them in order."""
        messages = list(self._queue)
        self._queue.clear()
        self.size = 0
        for message in messages:
            self._unread.remove(message)
        return messages


def cost(message: Message) -> int:
    """Return the bytes that a message takes while it waits for a client."""
    return message.size + MESSAGE_COST
