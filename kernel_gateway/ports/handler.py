"""Base handler of all dialects' requests to servers of user code: passes requests, answers and WebSockets on.

The body of a request is sent to the server while it arrives, and the answer to the client while it arrives. Each side
waits for the other, so the memory use does not depend on sizes. A WebSocket is a tunnel of bytes after its handshake.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from tornado.httputil import HTTPInputError
from tornado.iostream import IOStream, StreamClosedError

from kernel_gateway.errors import ServerFailed
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.sockets import KEY_CHECK_INTERVAL
from kernel_gateway.ports.failure_page import HEADERS, failure_page, wants_page
from kernel_gateway.ports.headers import Place, to_client, to_server, wants_websocket
from kernel_gateway.ports.upstream import IDLE, Head, Upstream
from kernel_gateway.wire.connections import connection_of
from sessions.backends.base import no_op
from sessions.backends.relay import RelayConnection
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.tasks import spawn
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session

#: maximum seconds of a request's body; `IDLE` bounds the time without progress
LONGEST_BODY = 86400.0
#: bytes per read of a client's WebSocket
PIECE = 32 * 1024
#: seconds of the event loop that a piece of a tunnel takes
PIECE_TIME = 0.0001
_PORT = re.compile("[0-9]{1,5}")


class PortHandler(BaseHandler):
    """A request to a server."""

    _exchange: asyncio.Task[None] | None = None
    _upstream: Upstream
    _websocket = False

    # -- for a dialect --------------------------------------------------------------------------------------

    @abstractmethod
    async def find(self) -> tuple[Session | Sandbox, int]:
        """Return the owner of the server and the port of the request, after its credential was checked.

        Raises:
            SessionError: when there is none.
        """

    @abstractmethod
    def target_path(self) -> str:
        """Return path and query as the server gets them."""

    @abstractmethod
    def place(self, port: int) -> Place:
        """Return how the server appears to the client."""

    def readers(self) -> Mapping[str, str]:
        """Return the headers that say which pages may read an answer on the gateway's own origin."""
        return self.gateway.origins.headers(self.request)

    def may_go_on(self) -> bool:
        """Return whether an open WebSocket may stay open: its credential is still valid."""
        return self.gateway.keys.is_still_valid(self.caller)

    def tunnel_begins(self, _cut: Callable[[], None]) -> Callable[[], None]:
        """Hear that a WebSocket begins, which `cut` ends. Return a function to call when it has ended."""
        return no_op

    # -- the request ----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Check the request, connect to the server, and send it the head. The body follows as it arrives."""
        if (prepared := super().prepare()) is not None:
            await prepared
        if hasattr(self, "caller"):  # not so for a preflight, which `Origins` answers
            await self._begin()

    async def _begin(self) -> None:
        self.http.set_max_body_size(sys.maxsize)
        self.http.set_body_timeout(LONGEST_BODY)
        owner, port = await self.find()
        self._whole = asyncio.Event()
        self._sent = asyncio.Event()
        self._websocket = wants_websocket(self.request.method, self.request.headers)
        if self.http.stream.closed():
            return  # the client has left already; tornado reports that only once
        self._exchange = spawn(self._pass_on(owner, port, self.place(port)), "request to a server")
        await self._or_end(self._sent.wait())
        if self._exchange.done() and not self._exchange.cancelled():
            self._exchange.result()

    async def data_received(self, chunk: bytes) -> None:
        """Send a part of the body to the server, when the server takes it. After its answer, drop the rest."""
        if self._exchange is not None and not self._exchange.done():
            await self._or_end(self._upstream.send(chunk))

    async def _or_end(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for work, or for the end of the exchange."""
        doing = spawn(work, "to a server")
        if self._exchange is not None:
            await asyncio.wait({doing, self._exchange}, return_when=asyncio.FIRST_COMPLETED)
        doing.cancel()

    async def answer(self, *_path: str) -> None:
        """Finish the request, and wait until the answer is passed on."""
        if self._exchange is None:
            return
        self._whole.set()
        await asyncio.wait({self._exchange})
        if not self._exchange.cancelled():
            self._exchange.result()

    get = head = post = put = patch = delete = answer

    async def options(self, *path: str) -> None:  # type: ignore[override]  # as above
        """Pass the request on, unless it is a preflight of a page that may use the gateway."""
        if hasattr(self, "caller"):
            await self.answer(*path)
        else:
            super().options(*path)

    def on_connection_close(self) -> None:
        """Leave the server: the client has left."""
        super().on_connection_close()
        if self._exchange is not None:
            self._exchange.cancel()

    def finish_failure(self, failure: SessionError) -> None:
        """Send a failure as a page to a browser that shows it, and in the dialect's format to all others."""
        if not wants_page(self.request.method, self.request.headers):
            super().finish_failure(failure)
            return
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.finish(failure_page(failure, HTTPStatus(self.get_status()), self.request_id))

    # -- the exchange ---------------------------------------------------------------------------------------

    async def _pass_on(self, owner: Session | Sandbox, port: int, place: Place) -> None:
        async with self.gateway.ports.open(owner, port) as connection:
            self._upstream = Upstream(connection)
            headers = to_server(self.request.headers, place, self.request.protocol, websocket=self._websocket)
            if "Transfer-Encoding" in self.request.headers:
                headers.append(("Transfer-Encoding", "chunked"))
            elif self.announced_length is not None:
                headers.append(("Content-Length", str(self.announced_length)))
            await self._upstream.begin(self.request.method or "", self.target_path(), headers)
            self._sent.set()
            ending = spawn(self._end_of_request(), "end of a request to a server")
            try:
                head = await self._upstream.head()
                if head.status == HTTPStatus.SWITCHING_PROTOCOLS:
                    await self._tunnel(owner, connection, head, place)
                else:
                    await self._send_answer(head, place)
            finally:
                ending.cancel()

    async def _end_of_request(self) -> None:
        await self._whole.wait()
        await self._upstream.finish()

    def _set_head(self, head: Head, place: Place) -> None:
        """Put the server's status and headers in place of the gateway's own.

        Raises:
            ServerFailed: when a header cannot be passed on.
        """
        for name in list(self._headers):
            self.clear_header(name)
        self.set_status(head.status)
        self._headers.add("X-Request-Id", self.request_id)
        if not place.own_host:
            for name, value in self.readers().items():
                self._headers.add(name, value)
        try:
            for name, value in to_client(head.headers, place):
                self._headers.add(name, value)
        except HTTPInputError:
            raise ServerFailed("the server's answer has a header that cannot be passed on") from None
        if not self.request._body_future.done():  # noqa: SLF001 - tornado then closes the connection without notice
            self._headers.add("Connection", "close")

    async def _send_answer(self, head: Head, place: Place) -> None:
        self._set_head(head, place)
        if head.status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
            self.clear_header("Content-Length")
        try:
            await self._flush()
            async for piece in self._upstream.body():
                began = time.perf_counter()
                self.write(piece)
                self.gateway.loop_time.spend(self.tenant, time.perf_counter() - began)
                await self._flush()
            self.finish()
        except StreamClosedError:
            return  # the client has left
        except (SessionError, TimeoutError):
            # The head is sent already, so only closing the connection early shows the failure to the client.
            self.http.close()

    async def _flush(self) -> None:
        async with asyncio.timeout(IDLE):
            await self.flush()
        await asyncio.sleep(self.gateway.loop_time.wait(self.tenant))

    # -- a WebSocket ----------------------------------------------------------------------------------------

    async def _tunnel(self, owner: Session | Sandbox, connection: RelayConnection, head: Head, place: Place) -> None:
        leave = self.gateway.sockets.enter(owner.key)
        try:
            await self._whole.wait()  # tornado has read the whole request
            rest = self._upstream.rest
            self._set_head(head, place)
            self.set_header("Upgrade", "websocket")
            self.set_header("Connection", "Upgrade")
            client = connection_of(self.http.stream)
            client.when_ended(leave)
            self.finish()
            stream = self.detach()
            stream.set_nodelay(True)  # otherwise every small frame waits 40 ms
            ended = self.tunnel_begins(client.drop)
            try:
                await self._pump(stream, connection, rest)
            finally:
                ended()
                stream.close()
        finally:
            leave()

    async def _pump(self, stream: IOStream, connection: RelayConnection, rest: bytes) -> None:
        """Pass bytes on in both directions until one side ends, its credential ends, or both are silent too long."""
        moved = [asyncio.get_running_loop().time()]
        work = [
            spawn(each, "tunnel to a server")
            for each in (
                self._to_client(stream, connection, rest, moved),
                self._to_server(stream, connection, moved),
                self._watch(moved),
            )
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in work:
                each.cancel()

    async def _to_client(self, stream: IOStream, connection: RelayConnection, piece: bytes, moved: list[float]) -> None:
        with suppress(SessionError, StreamClosedError):
            while piece := piece or await connection.read():
                await stream.write(piece)
                await self._moved(moved)
                piece = b""

    async def _to_server(self, stream: IOStream, connection: RelayConnection, moved: list[float]) -> None:
        with suppress(SessionError, StreamClosedError):
            while True:
                await connection.write(await stream.read_bytes(PIECE, partial=True))
                await self._moved(moved)

    async def _moved(self, moved: list[float]) -> None:
        """Count a piece for the tenant, whose other pieces wait if they are many."""
        moved[0] = asyncio.get_running_loop().time()
        self.gateway.loop_time.spend(self.tenant, PIECE_TIME)
        await asyncio.sleep(self.gateway.loop_time.wait(self.tenant))

    async def _watch(self, moved: list[float]) -> None:
        loop = asyncio.get_running_loop()
        while self.may_go_on() and loop.time() < moved[0] + IDLE:  # noqa: ASYNC110 - they have no event in common
            await asyncio.sleep(KEY_CHECK_INTERVAL)


def port_of(text: str) -> int:
    """Return the port that a client has written.

    Raises:
        InvalidRequest: when it is no number of a port.
    """
    if not _PORT.fullmatch(text) or not 0 < int(text) < 1 << 16:
        raise InvalidRequest("a port is a number from 1 to 65535", field="port")
    return int(text)
