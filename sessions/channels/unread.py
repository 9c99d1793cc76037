"""What the channel clients of one session have not read: bytes in the gateway's memory, counted as they are held.

A message that waits for several clients is held once, and counts once. What is being sent is a copy for each client. A
tenant has many sessions, each with clients. When they all together are behind too far, the client that is behind most
is disconnected: it loses its messages, and is told so when it returns.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

from sessions.kernels.messages import Message
from sessions.tenants.kept import KeptBytes

#: bytes that a message takes besides its content, for each client
MESSAGE_COST = 1024


class Reader(Protocol):
    """A client."""

    @property
    def unread(self) -> int:
        """Bytes that it has not read, as if no other client had them."""

    def cut(self) -> None:
        """Forget them, and disconnect it."""


class Unread:
    """The bytes that wait for the clients of one session."""

    def __init__(self, kept: KeptBytes, tenant: str) -> None:
        """Begin without clients.

        Args:
            kept: counts the bytes of all sessions.
            tenant: tenant of the session.
        """
        self._share = kept.share(tenant, self._cut_slowest)
        #: number of clients for which a message waits; a message is known by its parts, of which there is one tuple
        self._waiting: Counter[int] = Counter()
        self._readers: dict[Reader, None] = {}
        self._closed = False

    def enter(self, reader: Reader) -> None:
        """Take a client whose bytes count."""
        self._readers[reader] = None

    def leave(self, reader: Reader) -> None:
        """Forget a client, for which nothing waits any more."""
        self._readers.pop(reader, None)
        self._close_if_done()

    def add(self, message: Message) -> None:
        """Count a message that waits for one more client."""
        known = id(message.parts)
        self._waiting[known] += 1
        self._share.grow(MESSAGE_COST + (message.size if self._waiting[known] == 1 else 0))

    def remove(self, message: Message) -> None:
        """Count a message that waits for one client less."""
        known = id(message.parts)
        self._waiting[known] -= 1
        if self._waiting[known]:
            self._share.grow(-MESSAGE_COST)
        else:
            del self._waiting[known]
            self._share.grow(-MESSAGE_COST - message.size)

    def copied(self, size: int) -> None:
        """Count the bytes of a copy that is being sent, or its end if below 0."""
        self._share.grow(size)

    def close(self) -> None:
        """Note that no more clients come. What waits for those that there are still counts."""
        self._closed = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._closed and not self._readers:
            self._share.close()

    def _cut_slowest(self) -> bool:
        slowest = max(self._readers, key=lambda reader: reader.unread, default=None)
        if slowest is None or not slowest.unread:
            return False
        slowest.cut()
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
