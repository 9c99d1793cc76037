"""One HTTP/1.1 exchange with a server of user code. The server may send anything: h11 checks it, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus

import h11

from kernel_gateway.errors import ServerFailed
from kernel_gateway.ports.headers import Pairs
from sessions.backends.relay import RelayConnection
from sessions.model.errors import InvalidRequest

#: maximum bytes of an answer's head, of a chunk's head, and of trailers
HEAD_MAX = 64 * 1024
#: maximum answers such as `103 Early Hints` before the real one; the client gets none of them
INFORMATIONAL_MAX = 16
#: seconds for which neither side sends anything. Source: E2B's proxy
IDLE = 620.0


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer."""

    status: int
    headers: Pairs


class Upstream:
    """A request to a server, and its answer."""

    def __init__(self, connection: RelayConnection, idle: float = IDLE) -> None:
        """Send nothing yet.

        Args:
            connection: connection to the server, for this exchange only.
            idle: seconds without a byte in either direction after which the exchange fails.
        """
        self._connection = connection
        self._idle = idle
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX)
        self._moved = asyncio.get_running_loop().time()

    # -- the request ----------------------------------------------------------------------------------------

    async def begin(self, method: str, target: str, headers: Pairs) -> None:
        """Send the head of the request.

        Raises:
            InvalidRequest: when the request has characters that HTTP does not allow.
            ConnectionFailed: when the connection is broken.
        """
        try:
            fields = [(name.encode("latin1"), value.encode("latin1")) for name, value in headers]
            head = self._http.send(h11.Request(method=method, target=target, headers=fields))
        except (h11.LocalProtocolError, UnicodeEncodeError):
            raise InvalidRequest("the request has characters that HTTP does not allow", field="path") from None
        await self._connection.write(head or b"")

    async def send(self, content: bytes) -> None:
        """Send a part of the request's body, when the server takes it.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        self._moved = asyncio.get_running_loop().time()
        await self._connection.write(self._http.send(h11.Data(data=content)) or b"")
        self._moved = asyncio.get_running_loop().time()

    async def finish(self) -> None:
        """Send the end of the request's body.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        await self._connection.write(self._http.send(h11.EndOfMessage()) or b"")

    # -- the answer -----------------------------------------------------------------------------------------

    async def head(self) -> Head:
        """Return the head of the answer. The status 101 means that the connection has become a WebSocket.

        Raises:
            ServerFailed: when the answer is no HTTP, or has too many or too long parts.
            ConnectionFailed: when the connection is broken.
        """
        for _ in range(INFORMATIONAL_MAX):
            event = await self._next()
            if isinstance(event, h11.Response) or (
                isinstance(event, h11.InformationalResponse) and event.status_code == HTTPStatus.SWITCHING_PROTOCOLS
            ):
                return Head(
                    event.status_code, [(n.decode("latin1"), v.decode("latin1")) for n, v in event.headers.raw_items()]
                )
            if not isinstance(event, h11.InformationalResponse):
                raise ServerFailed("the server has closed the connection without an answer")
        raise ServerFailed(f"the server has sent {INFORMATIONAL_MAX} preliminary answers, and no other")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer, as it arrives.

        Raises:
            ServerFailed: when the body is not complete, or no HTTP.
            ConnectionFailed: when the connection is broken.
        """
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    @property
    def rest(self) -> bytes:
        """What has arrived after the head of an answer with the status 101."""
        return self._http.trailing_data[0]

    async def _next(self) -> object:
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event
                self._http.receive_data(await self._read())
            except h11.RemoteProtocolError as error:
                raise ServerFailed(f"the server's answer is no valid HTTP: {str(error)[:200]}") from None

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(self._moved + self._idle):
                    piece = await self._connection.read()
            except TimeoutError:
                if loop.time() < self._moved + self._idle:  # the client has sent something meanwhile
                    continue
                raise ServerFailed(f"neither client nor server has sent anything for {self._idle:g} s") from None
            self._moved = loop.time()
            return piece
