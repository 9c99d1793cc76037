"""Large bodies begin to be handled one after the other, tenants in turn: between two, the event loop serves everybody.

A body of 4 MiB may take 0.1 s to parse and to check, in one piece. Many that are complete in the same moment would keep
all others waiting for as many times as long.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate

from kernel_gateway.fair_loop import Slices
from kernel_gateway.wire.connections import Connection, connection_of
from kernel_gateway.wire.forwarding import Forwarding
from sessions.model.tasks import spawn

#: bytes from which on a body is large
LARGE = 16 * 1024
#: rounds of the event loop until a handler that gets its whole body has begun
_ROUNDS = 3


class BodiesInTurn(HTTPServerConnectionDelegate):
    """Wraps the application: lets the large bodies of all connections be complete in turn."""

    def __init__(self, application: HTTPServerConnectionDelegate, slices: Slices) -> None:
        self._application = application
        self._slices = slices

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wrap a request. Tornado calls this for each request."""
        if not isinstance(request_conn, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        request = self._application.start_request(server_conn, request_conn)
        return _BodyInTurn(request, connection_of(request_conn.stream), self._slices)

    def on_close(self, server_conn: object) -> None:
        """Pass on the end of a connection. Tornado calls this."""
        self._application.on_close(server_conn)


class _BodyInTurn(Forwarding):
    def __init__(self, request: HTTPMessageDelegate, connection: Connection, slices: Slices) -> None:
        super().__init__(request)
        self._connection = connection
        self._slices = slices
        self._size = 0

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._size += len(chunk)
        return super().data_received(chunk)

    def finish(self) -> None:
        if self._size < LARGE:
            super().finish()
        else:
            spawn(self._finish_in_turn(), "large body")

    async def _finish_in_turn(self) -> None:
        async with self._slices.turn(self._connection.user, _ROUNDS):
            if not self._connection.ended:  # else the handler knows that, and expects nothing more
                super().finish()
