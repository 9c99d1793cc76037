"""A kernel's channels over a WebSocket.

Close codes: 1000 the kernel was ended, 1001 the gateway shuts down, 1007 a frame that is no message, 4401 the key was
revoked, 4409 another connection took over.
"""

from __future__ import annotations

import asyncio

from tornado.websocket import WebSocketClosedError

from kernel_gateway.dialects.jupyter.base import JupyterHandler
from kernel_gateway.dialects.jupyter.framing import V1, Request, decode, encode
from kernel_gateway.sockets import SocketHandler
from sessions.errors import InvalidRequest, SessionError, ShuttingDown
from sessions.models import SessionKey
from sessions.subscription import Subscription, announcement, refusal
from sessions.tasks import spawn

#: bytes of one frame from a client
FRAME_MAX = 64 * 1024**2
#: characters of a client's id
CLIENT_MAX = 256
ENDED, GOING_AWAY, MALFORMED, TAKEN_OVER = 1000, 1001, 1007, 4409
CHANNELS = frozenset({"shell", "control", "stdin"})
#: what a client asks when it is idle itself
NO_ACTIVITY = frozenset({"kernel_info_request", "comm_info_request"})


class ChannelsHandler(JupyterHandler, SocketHandler):
    """`/api/kernels/{id}/channels`."""

    _subscription: Subscription | None = None
    _pump: asyncio.Task[None] | None = None
    #: how frames are written, noted at the start: tornado forgets it with the connection
    _way: str | None = None

    def session_key(self) -> SessionKey:
        """The session behind the kernel id, which must exist."""
        return self.session(self.path_args[0]).key

    @property
    def max_message_size(self) -> int:
        """Widgets and data come this way: more than elsewhere."""
        return FRAME_MAX

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """The binary one when the client offers it."""
        return V1 if V1 in subprotocols else None

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Begin."""
        super().open()
        self._way = self.selected_subprotocol
        client = self.get_query_argument("session_id", "")[:CLIENT_MAX]
        self._subscription = self._session.channels.subscribe(client)
        self._pump = spawn(self._deliver(self._subscription), "channels")

    async def _deliver(self, subscription: Subscription) -> None:
        while (message := await subscription.take()) is not None:
            frame, binary = encode(message, self._way)
            try:
                await self.write_message(frame, binary=binary)
            except WebSocketClosedError:
                subscription.give_back(message)
                self._session.channels.leave(subscription)
                return
        if isinstance(self.gateway.trouble(), ShuttingDown):
            self.close(GOING_AWAY, "the gateway is shutting down")
        elif self._session.closed:
            self.close(ENDED, "the kernel was ended")
        else:
            self.close(TAKEN_OVER, "another connection took over")

    async def on_message(self, message: str | bytes) -> None:
        """Pass a frame on to the kernel."""
        if not self.allowed():
            return
        try:
            request = decode(message, self._way)
        except InvalidRequest as error:
            self.close(MALFORMED, error.message[:100])
            return
        if request.channel not in CHANNELS or self._subscription is None:
            return  # as every Jupyter server does
        if request.type not in NO_ACTIVITY:
            self._session.touch()
        try:
            if request.type == "shutdown_request":
                await self._shut_down(request)
                return
            if request.type == "execute_request":  # as everywhere, it starts the kernel that follows a dead one
                await self._session.settled_kernel()
            self._session.channels.forward(
                self._subscription, request.channel, request.header, request.parts, request.buffers
            )
        except SessionError as error:
            self._refuse(request, error)

    async def _shut_down(self, request: Request) -> None:
        """What a client wants of its kernel, it is given by the session: no kernel ends behind its back."""
        restart = b'"restart":true' in request.parts[3].replace(b" ", b"")
        self._answer(request, "shutdown_reply", {"status": "ok", "restart": restart})
        if restart:
            await self._session.restart()
        else:
            await self.gateway.registry.end(self._session.key)

    def _refuse(self, request: Request, error: SessionError) -> None:
        """Let the client know; nobody else has heard of the request."""
        if self._subscription is not None:
            for message in refusal(request.channel, request.header, error):
                self._subscription.feed(message)

    def _answer(self, request: Request, msg_type: str, content: dict[str, object]) -> None:
        if self._subscription is not None:
            self._subscription.feed(announcement(request.channel, msg_type, content, request.header))

    def on_close(self) -> None:
        """The client has left; what it misses is kept for a while."""
        if self._pump is not None:
            self._pump.cancel()
        if self._subscription is not None:
            self._session.channels.leave(self._subscription)
