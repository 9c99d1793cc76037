"""What the channel clients of one session have not read: bytes in the gateway's memory, counted as they are held.

A message that waits for several clients is held once, and counts once. What is being sent is a copy for each client. A
tenant has many sessions, each with clients. When they all together are behind too far, the client that is behind most
is disconnected: it loses its messages, and is told so when it returns.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from sessions.kernels.messages import Message
from sessions.tenants.kept_bytes import KeptBytes

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
