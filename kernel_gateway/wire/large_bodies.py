"""Handles large requests, and those of tenants that ask very much, one after the other. The loop serves others between.

Parsing and checking a body of 4 MiB may block the event loop for 0.1 s. Many bodies that are complete at the same time
would block it for the sum of their times. So would very many small requests.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack

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


class RequestsInTurn(HTTPServerConnectionDelegate):
    """Wraps the application: a request that is large, or beyond its tenant's share, gets to its handler in its turn."""

    def __init__(self, application: HTTPServerConnectionDelegate, fair_loop: FairLoop) -> None:
        self._application = application
        self._fair_loop = fair_loop

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wrap a request. Tornado calls this for each request."""
        if not isinstance(request_conn, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        connection = connection_of(request_conn.stream)
        connection.begin_request()
        request = self._application.start_request(server_conn, request_conn)
        return _RequestInTurn(request, connection, self._fair_loop)

    def on_close(self, server_conn: object) -> None:
        """Pass on the end of a connection. Tornado calls this."""
        self._application.on_close(server_conn)


class _RequestInTurn(Forwarding):
    def __init__(self, request: HTTPMessageDelegate, connection: Connection, fair_loop: FairLoop) -> None:
        super().__init__(request)
        self._connection = connection
        self._fair_loop = fair_loop
        self._size = 0

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._size += len(chunk)
        return super().data_received(chunk)

    def finish(self) -> None:
        # A request without a tenant is public, or was refused already.
        beyond_share = self._connection.requester is not None and self._fair_loop.is_beyond_share(self._connection.user)
        if self._size < LARGE and (self._connection.ended or not beyond_share):
            super().finish()
        else:
            work = self._finish_in_turn(beyond_share and not self._connection.urgent)
            self._connection.wait(spawn(work, "request in turn"))

    async def _finish_in_turn(self, waits_for_share: bool) -> None:  # noqa: FBT001
        tenant = self._connection.user
        async with AsyncExitStack() as stack:
            if waits_for_share:
                await stack.enter_async_context(self._fair_loop.share(tenant))
            await stack.enter_async_context(self._fair_loop.turn(tenant, _ROUNDS))
            self._connection.end_wait()
            if not self._connection.ended:  # a handler of a closed connection expects no end of the body
                super().finish()
