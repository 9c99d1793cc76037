"""Handles large request bodies one after the other, tenants in turn. Between two bodies the event loop serves others.

Parsing and checking a body of 4 MiB may block the event loop for 0.1 s. Many bodies that are complete at the same time
would block it for the sum of their times.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate

from kernel_gateway.fair_loop import FairLoop
from kernel_gateway.wire.connections import Connection, connection_of
from kernel_gateway.wire.forwarding import Forwarding
from sessions.model.tasks import spawn

#: a body of at least so many bytes is large
LARGE = 16 * 1024
#: iterations of the event loop between the end of a body and the start of its handler
_ROUNDS = 3


class BodiesInTurn(HTTPServerConnectionDelegate):
    """Wraps the application: passes on the end of a large body only when the body's turn has come."""

    def __init__(self, application: HTTPServerConnectionDelegate, fair_loop: FairLoop) -> None:
        self._application = application
        self._fair_loop = fair_loop

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wrap a request. Tornado calls this for each request."""
        if not isinstance(request_conn, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        request = self._application.start_request(server_conn, request_conn)
        return _BodyInTurn(request, connection_of(request_conn.stream), self._fair_loop)

    def on_close(self, server_conn: object) -> None:
        """Pass on the end of a connection. Tornado calls this."""
        self._application.on_close(server_conn)


class _BodyInTurn(Forwarding):
    def __init__(self, request: HTTPMessageDelegate, connection: Connection, fair_loop: FairLoop) -> None:
        super().__init__(request)
        self._connection = connection
        self._fair_loop = fair_loop
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
        async with self._fair_loop.turn(self._connection.user, _ROUNDS):
            if not self._connection.ended:  # a handler of a closed connection expects no end of the body
                super().finish()
