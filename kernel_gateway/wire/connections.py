"""One client's connection: reports its reads and its end, and limits the time that the head of a request may take.

Tornado's streams call `read_from_fd` for each read and `close_fd` once; the subclasses here override both.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from tornado.httputil import HTTPInputError
from tornado.iostream import BaseIOStream, IOStream, SSLIOStream

from sessions.model.units import HEAD_FIELDS

#: seconds within which the whole head of a request must arrive. The time of the first request begins when the
#: connection is accepted, and that of a later request at its first byte
HEAD_TIMEOUT = 20.0
#: value of `SO_LINGER` with which a closed connection is reset. Source: socket(7)
RESET = struct.pack("ii", 1, 0)


class Connection:
    """A connection from accept to close."""

    def __init__(self, address: str) -> None:
        """Create a connection without a stream; `attach` adds the stream.

        Args:
            address: address under which the client's connections are counted.
        """
        self.address = address
        #: tenant of the latest request with a valid key; before such a request, the address
        self.user = address
        #: tenant of the current request; None until its key was checked, or if it needs none
        self.requester: str | None = None
        #: True if the current request does not wait for the tenant's share of the event loop
        self.urgent = False
        #: the current request, while it waits for its turn
        self._waiting: asyncio.Task[None] | None = None
        self.stream: Stream | None = None
        self.ended = False
        #: True if everything that the client sends is thrown away
        self._ignores = False
        self._on_read: Callable[[int], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_assigned: Callable[[str], None] | None = None
        self._on_end: list[Callable[[], None]] = []

    # -- for its owner ----------------------------------------------------------------------------------------

    def when_read(self, tell: Callable[[int], None] | None) -> None:
        """Report the number of bytes of each later read to `tell`. None stops the reports."""
        self._on_read = tell

    def when_assigned(self, tell: Callable[[str], None]) -> None:
        """Report the tenant of each request with a valid key to `tell`, which may raise an error to refuse it."""
        self._on_assigned = tell

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell` once when the connection ends. If the connection has ended already, call it now."""
        if self.ended:
            tell()
        else:
            self._on_end.append(tell)

    def ignore_input(self) -> None:
        """Throw away everything that the client sends from now on."""
        self._ignores = True

    def unread(self) -> int:
        """Return the number of bytes that have arrived and that tornado's parsers have not read yet.

        Tornado (6.5 and 6.6) has this number only in a private attribute.
        """
        return 0 if self.stream is None else self.stream._read_buffer_size  # noqa: SLF001

    def drop(self) -> None:
        """End the connection at once."""
        if self.stream is not None:
            self.stream.close()

    def reset(self) -> None:
        """End the connection at once, so that the client sees that it was cut. What was sent before still arrives."""
        if self.stream is not None and not self.stream.closed():
            with suppress(OSError):  # the client has left
                self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.stream.close()

    # -- the head of a request --------------------------------------------------------------------------------

    def expect_head(self) -> None:
        """Start the time limit of the next request's head at its first byte. Until then the connection may be idle."""
        if self._timer is None:
            self.when_read(self.limit_head_time)

    def limit_head_time(self, _count: int = 0) -> None:
        """End the connection unless the head of a request is complete within `HEAD_TIMEOUT`."""
        self.when_read(None)
        self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self.drop)

    def end_head_time(self) -> None:
        """Stop the time limit, because the head of the request has arrived."""
        self.when_read(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin_request(self) -> None:
        """Forget the earlier request, because the next one may have another key, or none."""
        self.requester, self.urgent = None, False

    def wait(self, request: asyncio.Task[None]) -> None:
        """Cancel the task, in which the current request waits for its turn, if the client leaves meanwhile."""
        self._waiting = request

    def end_wait(self) -> None:
        """Let the task go on whatever the client does: its turn has come."""
        self._waiting = None

    def assign(self, tenant: str, *, urgent: bool = False) -> None:
        """Assign the current request to a tenant, after its key was checked.

        Raises:
            QuotaExceeded: when requests of the tenant occupy as many connections as they may.
        """
        self.user = self.requester = tenant
        self.urgent = urgent
        if self._on_assigned is not None:
            self._on_assigned(tenant)

    # -- for its stream ---------------------------------------------------------------------------------------

    def attach(self, stream: Stream) -> None:
        """Connect a stream, so that it reports its reads and its end here."""
        self.stream = stream
        stream.report_to(self)

    def report_read(self, count: int | None) -> int | None:
        """Report a read of the stream.

        Args:
            count: number of bytes that were read. 0 means that the client has closed, None that nothing has arrived.

        Returns:
            the count for tornado: None if the bytes are thrown away, as if nothing had arrived.
        """
        if not count:
            return count
        if self._on_read is not None:
            self._on_read(count)
        return None if self._ignores else count

    def report_end(self) -> None:
        """Mark the connection as ended, and call the functions that wait for that."""
        self.ended = True
        self.end_head_time()
        if self._waiting is not None:
            self._waiting.cancel()  # or the requests of clients that leave at once would be more and more
        ends, self._on_end = self._on_end, []
        for tell in ends:
            tell()


class Stream(BaseIOStream):
    """The stream of a connection. It reports each read and its end to the connection."""

    connection: Connection
    #: tornado's: with TLS, it is of another class
    socket: Any

    def report_to(self, connection: Connection) -> None:
        """Report each later read and the end to a connection."""
        self.connection = connection

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read into `buf`; see `BaseIOStream.read_from_fd`."""
        return self.connection.report_read(super().read_from_fd(buf))

    async def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> bytes:
        """Read the head of a request. Tornado calls this for nothing else.

        Raises:
            HTTPInputError: when the head has too many fields; tornado takes about 5 us to parse each of them.
        """
        head = await super().read_until_regex(regex, max_bytes)
        if head.count(b"\n") - 2 > HEAD_FIELDS:  # the first line, and the empty one at the end
            raise HTTPInputError("too many header fields")
        return head

    def close_fd(self) -> None:
        """Close the socket; tornado calls this once."""
        super().close_fd()
        self.connection.report_end()


class PlainStream(Stream, IOStream):
    """The stream of a connection without TLS."""


class TlsStream(Stream, SSLIOStream):
    """The stream of a connection with TLS. A client that sends plain http is told so before the connection ends."""

    def close(self, exc_info: Any = False) -> None:  # noqa: FBT002 - tornado's signature
        """Close the stream; see `BaseIOStream.close`. Tornado passes the error that ended the TLS handshake."""
        if isinstance(exc_info, ssl.SSLError) and exc_info.reason in _NO_TLS and not self.closed():
            with suppress(OSError):
                self._answer_without_tls()
        super().close(exc_info)

    def _answer_without_tls(self) -> None:
        plain = socket.socket  # its methods send and receive without TLS
        plain.send(self.socket, USE_HTTPS)
        plain.shutdown(self.socket, socket.SHUT_WR)
        plain.recv(self.socket, 65536)  # the system would take back the answer if the request were still unread


#: why OpenSSL ends a handshake with a client that does not speak TLS. It knows the first four methods of http by name
_NO_TLS = {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER"}


def _use_https() -> bytes:
    body = b"This port speaks https, but the request came as plain http. Use an address that begins with https://\n"
    status = HTTPStatus.BAD_REQUEST
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


#: answer to a client that sends plain http where https is spoken
USE_HTTPS = _use_https()


def connection_of(stream: object) -> Connection:
    """Return the connection of a stream that the listener has made.

    Raises:
        TypeError: when the stream was made elsewhere, which is a defect.
    """
    if not isinstance(stream, Stream):
        raise TypeError("the stream is none of the listener's")
    return stream.connection
