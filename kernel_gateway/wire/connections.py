"""One client's connection: what arrives on it, how long the head of a request may take, and its end.

Tornado's streams call `read_from_fd` for each read and `close_fd` once, and let subclasses override both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tornado.httputil import HTTPInputError
from tornado.iostream import BaseIOStream, IOStream, SSLIOStream

from sessions.model.units import HEAD_FIELDS

#: seconds for the whole head of a request, from accept for the first and else from its first byte
HEAD_TIMEOUT = 20.0


class Connection:
    """A connection from accept to close."""

    def __init__(self, address: str) -> None:
        """Begin.

        Args:
            address: name of the peer, for its share of all connections.
        """
        self.address = address
        #: tenant of its latest request with a valid key; until then its address
        self.user = address
        #: tenant whose request it has at present; None: none
        self.worker: str | None = None
        self.stream: Stream | None = None
        self.ended = False
        #: what the client sends is thrown away
        self._ignores = False
        self._told: Callable[[int], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._works: Callable[[str], None] | None = None
        self._ends: list[Callable[[], None]] = []

    # -- for its owner ----------------------------------------------------------------------------------------

    def when_read(self, tell: Callable[[int], None] | None) -> None:
        """Call `tell` with the number of bytes of each read from now on; None: nobody."""
        self._told = tell

    def when_working(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with its tenant for each request with a valid key; it may refuse the request."""
        self._works = tell

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell` once when the connection ends, at once if it has ended."""
        if self.ended:
            tell()
        else:
            self._ends.append(tell)

    def ignore_input(self) -> None:
        """Throw away whatever the client still sends."""
        self._ignores = True

    def unread(self) -> int:
        """Return the bytes that have arrived and that tornado's parsers have not taken yet.

        Tornado (6.5 and 6.6) counts them in a private attribute.
        """
        return 0 if self.stream is None else self.stream._read_buffer_size  # noqa: SLF001

    def drop(self) -> None:
        """End the connection at once."""
        if self.stream is not None:
            self.stream.close()

    # -- the head of a request --------------------------------------------------------------------------------

    def await_head(self) -> None:
        """Wait for the next request. The connection may be idle, but a head that has begun must be complete in time."""
        if self._timer is None:
            self.when_read(self.head_begins)

    def head_begins(self, _count: int = 0) -> None:
        """End the connection unless the head of a request is complete within `HEAD_TIMEOUT`."""
        self.when_read(None)
        self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self.drop)

    def head_is_complete(self) -> None:
        """Note that the head of the request has arrived."""
        self.when_read(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def works(self, tenant: str) -> None:
        """Note that the request is one of a tenant with a valid key.

        Raises:
            QuotaExceeded: when the tenant has requests on as many connections as it may.
        """
        self.user = tenant
        if self._works is not None:
            self._works(tenant)

    # -- for its stream ---------------------------------------------------------------------------------------

    def attach(self, stream: Stream) -> None:
        """Get what this stream reads, and its end."""
        self.stream = stream
        stream.connection = self

    def has_read(self, count: int | None) -> int | None:
        """Take note of a read.

        Args:
            count: bytes that were read; 0: the client has closed; None: there was nothing to read.

        Returns:
            what the stream shall believe: None for bytes that are thrown away.
        """
        if not count:
            return count
        if self._told is not None:
            self._told(count)
        return None if self._ignores else count

    def has_ended(self) -> None:
        """Tell everybody concerned that the connection has ended."""
        self.ended = True
        self.head_is_complete()
        ends, self._ends = self._ends, []
        for tell in ends:
            tell()


class Stream(BaseIOStream):
    """The stream of a connection, which it tells of each read and of its end."""

    connection: Connection

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read into `buf`; see `BaseIOStream.read_from_fd`."""
        return self.connection.has_read(super().read_from_fd(buf))

    async def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> bytes:
        """Read the head of a request, for which alone tornado calls this.

        Raises:
            HTTPInputError: when the head has too many fields; tornado takes some 5 us to parse each.
        """
        head = await super().read_until_regex(regex, max_bytes)
        if head.count(b"\n") - 2 > HEAD_FIELDS:  # the first line, and the empty one at the end
            raise HTTPInputError("too many header fields")
        return head

    def close_fd(self) -> None:
        """Close the socket; tornado calls this once."""
        super().close_fd()
        self.connection.has_ended()


class PlainStream(Stream, IOStream):
    """The stream of a connection without TLS."""


class TlsStream(Stream, SSLIOStream):
    """The stream of a connection with TLS."""


def connection_of(stream: object) -> Connection:
    """Return the connection of a stream that the listener has made.

    Raises:
        TypeError: when something else has made it, which is a defect.
    """
    if not isinstance(stream, Stream):
        raise TypeError("the stream is none of the listener's")
    return stream.connection
