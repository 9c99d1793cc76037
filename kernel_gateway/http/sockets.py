"""Base handler of all dialects' WebSockets: it upgrades the request, limits what clients send, and closes the socket.

A socket is closed when its session ends. Close codes: 1000 the session was ended, 1001 the gateway is shutting down,
1002 a frame was not masked, 4401 the key was revoked or has expired, 4408 a message took too long to arrive, 4413 the
tenant's incomplete messages are too large together.
Messages are never compressed (tornado's default), so no message is larger in memory than on the wire.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketHandler, WebSocketProtocol, WebSocketProtocol13

from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.metered import Metered
from kernel_gateway.wire.connections import Connection, connection_of
from kernel_gateway.wire.incoming import Account, MessageWatch
from kernel_gateway.wire.large_bodies import LARGE
from sessions.model.errors import InvalidRequest, ShuttingDown
from sessions.model.tasks import spawn
from sessions.model.values import SessionKey
from sessions.session.session import Session

ENDED, GOING_AWAY, UNMASKED, REVOKED, TOO_SLOW, TOO_MUCH = 1000, 1001, 1002, 4401, 4408, 4413
#: seconds between two checks of the key, if the client sends nothing
KEY_CHECK_INTERVAL = 1.0
#: maximum seconds to send the last messages of an ended session before its socket is closed
LAST_MESSAGES_TIMEOUT = 5.0


class MaskedFrames(WebSocketProtocol13):
    """Refuses frames that are not masked. Source: RFC 6455, 5.1. Tornado (6.5 and 6.6) accepts them.

    Without masks, a web page's script could choose the exact bytes on the wire, and a proxy could read them as a
    request.
    """

    _at_head = False

    async def _receive_frame(self) -> None:
        self._at_head = True
        await super()._receive_frame()

    async def _read_bytes(self, n: int) -> bytes:
        data = await super()._read_bytes(n)
        if self._at_head and not data[1] & 0x80:
            self.close(UNMASKED, "frames of clients must be masked")
            raise StreamClosedError
        self._at_head = False
        return data


class ClientSocketHandler(BaseHandler, WebSocketHandler):
    """A WebSocket: its key is checked again and again, and what its client sends is counted and limited."""

    _connection: Connection
    #: counts the bytes that the gateway keeps for this socket
    _account: Account
    _watch: MessageWatch
    #: gives the socket's place back, for the limits of open WebSockets
    _leave: Callable[[], None] | None = None

    def prepare(self) -> Awaitable[None] | None:
        """Check the request, and keep its connection, which tornado detaches later."""
        self._connection = connection_of(self.http.stream)
        return super().prepare()

    def take_place(self, key: SessionKey) -> None:
        """Take a place among the open WebSockets of a session or sandbox, until the connection ends.

        Raises:
            QuotaExceeded: when there are too many.
        """
        self._leave = self.gateway.sockets.enter(key)
        self._connection.when_ended(self._leave)

    def on_finish(self) -> None:
        """Give the place of a socket back that was not opened. Tornado calls this at a successful upgrade, too."""
        if self._leave is not None and self.get_status() != HTTPStatus.SWITCHING_PROTOCOLS:
            self._leave()

    def get_websocket_protocol(self) -> WebSocketProtocol | None:
        """Return the protocol that the client asks for, or None if it is not supported."""
        protocol = super().get_websocket_protocol()
        if not isinstance(protocol, WebSocketProtocol13):
            return protocol
        return MaskedFrames(self, mask_outgoing=False, params=protocol.params)

    def check_origin(self, origin: str) -> bool:
        """Return True for pages of the gateway's own origin and of origins that the operator allows."""
        return self.gateway.origins.allow(origin) or super().check_origin(origin)

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Set up the open socket, and start to watch its key and its input."""
        self.set_nodelay(True)  # otherwise every small frame waits 40 ms
        if self.caller.key_id is not None:
            self._check_key()
        self._account = self.gateway.incoming.account(self.tenant)
        self._connection.when_ended(self._account.close)
        seconds = self.gateway.settings.message_timeout
        self._watch = MessageWatch(self._account, seconds, self._is_too_much, self._is_too_slow)
        self._connection.when_ended(self._watch.stop)
        self._connection.when_read(self._watch.arrived)
        self._frame_handled()

    # -- its key ----------------------------------------------------------------------------------------------

    def _check_key(self) -> None:
        if self.ws_connection is not None and self.allowed():
            asyncio.get_running_loop().call_later(KEY_CHECK_INTERVAL, self._check_key)

    def allowed(self) -> bool:
        """Return True if the key that opened the socket is still valid. Otherwise close the socket."""
        if self.gateway.keys.is_still_valid(self.caller):
            return True
        self.close(REVOKED, "the key was revoked or has expired")
        return False

    # -- its input --------------------------------------------------------------------------------------------

    def count_time(self, seconds: float) -> None:
        """Count time of the event loop for the tenant: reading and handling messages, as long as the socket is open."""
        if hasattr(self, "tenant"):
            self.gateway.loop_time.spend(self.tenant, seconds)

    def on_message(self, message: str | bytes) -> Coroutine[Any, Any, None]:
        """Handle a message if the client's key is still valid. Tornado reads the next message only after this."""
        return Metered(self._handle(message), self.count_time)

    async def _handle(self, message: str | bytes) -> None:
        if not self.allowed():
            return
        self.gateway.keys.note_use(self.caller)
        self._watch.completed()
        if len(message) >= LARGE:
            await self.gateway.fair_loop.begin(self.tenant)
        try:
            await self.received(message)
        finally:
            self._frame_handled()
        # More messages may have arrived already, and other tenants wait for the loop, too.
        await asyncio.sleep(self.gateway.loop_time.wait(self.tenant))

    @abstractmethod
    async def received(self, message: str | bytes) -> None:
        """Handle a message of the client."""

    def on_ping(self, _data: bytes) -> None:
        """Update the byte count after a control frame, which may come between the parts of a message."""
        self._frame_handled()

    def on_pong(self, _data: bytes) -> None:
        """Update the byte count after a control frame."""
        self._frame_handled()

    def _frame_handled(self) -> None:
        if self.ws_connection is not None:
            fragments = _fragments(self.ws_connection)
            self._watch.handled(fragments + self._connection.unread(), within_message=fragments > 0)

    def _is_too_much(self) -> None:
        refusal = self.gateway.incoming.refusal("incomplete messages", self.tenant)
        self._give_up("bytes", TOO_MUCH, f"{refusal.message} ({refusal.code})")

    def _is_too_slow(self) -> None:
        seconds = self.gateway.settings.message_timeout
        self._give_up("slow", TOO_SLOW, f"a message was not complete after {seconds:g} s")

    def _give_up(self, reason: str, code: int, told: str) -> None:
        self._connection.ignore_input()  # the client may send more until it has answered the close frame
        if self.ws_connection is not None:
            self.gateway.metrics.connections.socket_refused(reason)
            self.close(code, told)


class SocketHandler(ClientSocketHandler):
    """A WebSocket of one session, with which it ends."""

    _session: Session
    _end_watch: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Check the key, and get or create the session with its kernel. The upgrade of the connection follows."""
        super().prepare()
        if self.request.method != "GET":
            return  # tornado refuses the method
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidRequest("this path speaks WebSocket only", field="Upgrade")
        key = self.session_key()
        self.take_place(key)
        self._session = await self.gateway.registry.get_or_create(key)

    @abstractmethod
    def session_key(self) -> SessionKey:
        """Return the key of the session that the path names.

        Raises:
            SessionError: when the path names no session.
        """

    def open(self, *args: str, **kwargs: str) -> None:
        """Set up the open socket, and start to watch its session, too."""
        super().open(*args, **kwargs)
        self._end_watch = spawn(self._end_with_session(), "socket")

    async def _end_with_session(self) -> None:
        await self._session.clients_must_leave.wait()
        with suppress(TimeoutError):  # the client may not read its messages
            async with asyncio.timeout(LAST_MESSAGES_TIMEOUT):
                await self.send_last_messages()
        if isinstance(self.gateway.trouble(), ShuttingDown):
            self.close(GOING_AWAY, "the gateway is shutting down")
        else:
            self.close(ENDED, "the session was ended")

    @abstractmethod
    async def send_last_messages(self) -> None:
        """Wait until the client has received the last messages about its cells."""

    def on_close(self) -> None:
        """Stop waiting for the session's end."""
        if self._end_watch is not None:
            self._end_watch.cancel()


def _fragments(connection: WebSocketProtocol) -> int:
    """Return the number of bytes of an incomplete message that have arrived so far.

    Tornado (6.5 and 6.6) keeps them in a private attribute and reports only whole messages.
    """
    return len(connection._fragmented_message_buffer or b"")  # type: ignore[attr-defined]  # noqa: SLF001
