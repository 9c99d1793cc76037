"""Large bodies begin to be handled one after the other, tenants in turn: between two, the event loop serves everybody.

A body of 4 MiB may take 0.1 s to parse and to check, in one piece. Many that are complete in the same moment would keep
all others waiting for as many times as long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate

from kernel_gateway.wire.connections import Connection, connection_of
from kernel_gateway.wire.forwarding import Forwarding
from sessions.tasks import spawn
from sessions.tenants.admission import Admission
from sessions.tenants.turns import take_turn

#: bytes from which on a body is large
LARGE = 16 * 1024
#: rounds of the event loop until a handler that gets its whole body has begun
_ROUNDS = 3


class BodiesInTurn(HTTPServerConnectionDelegate):
    """Wraps the application: lets the large bodies of all connections be complete in turn."""

    def __init__(self, application: HTTPServerConnectionDelegate) -> None:
        self._application = application
        self._turns = Admission(1, 1)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wrap a request. Tornado calls this for each request."""
        if not isinstance(request_conn, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        request = self._application.start_request(server_conn, request_conn)
        return _BodyInTurn(request, connection_of(request_conn.stream), self._turns)

    def on_close(self, server_conn: object) -> None:
        """Pass on the end of a connection. Tornado calls this."""
        self._application.on_close(server_conn)


class _BodyInTurn(Forwarding):
    def __init__(self, request: HTTPMessageDelegate, connection: Connection, turns: Admission) -> None:
        super().__init__(request)
        self._connection = connection
        self._turns = turns
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
        user = self._connection.user
        await take_turn(self._turns, user, None)
        try:
            if self._connection.ended:
                return  # the handler knows that, and expects nothing more
            began = time.perf_counter()
            super().finish()
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            await asyncio.sleep(time.perf_counter() - began)
        finally:
            self._turns.leave(user)
