"""Connects a Jupyter client to a kernel's channels over a WebSocket.

Close codes, in addition to those in `sockets.py`: 1007 a frame is not a valid message, 4409 another connection of the
same client took over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import orjson
from tornado.websocket import WebSocketClosedError

from kernel_gateway.dialects.jupyter.base import JupyterHandler
from kernel_gateway.dialects.jupyter.framing import V1, Request, decode, encode
from kernel_gateway.dialects.jupyter.open_webui import PREFIX, readable
from kernel_gateway.http.sockets import SocketHandler
from sessions.channels.subscription import Subscription, gateway_message, refusal
from sessions.kernels.messages import Message
from sessions.model import bounded_json
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import SessionKey

#: maximum bytes of one frame from a client
FRAME_MAX = 64 * 1024**2
#: maximum characters of a client's id
CLIENT_MAX = 256
MALFORMED, TAKEN_OVER = 1007, 4409
CHANNELS = frozenset({"shell", "control", "stdin"})
#: requests that do not count as activity of the session, because idle clients send them, too
NO_ACTIVITY = frozenset({"kernel_info_request", "comm_info_request"})


class ChannelsHandler(JupyterHandler, SocketHandler):
    """`/api/kernels/{id}/channels`."""

    _subscription: Subscription | None = None
    _delivery: asyncio.Task[None] | None = None
    #: the subprotocol; a copy, because tornado forgets it when the connection closes
    _subprotocol: str | None = None

    def session_key(self) -> SessionKey:
        """Return the key of the session with this kernel id; the session must exist."""
        return self.session(self.path_args[0]).key

    @property
    def _is_open_webui(self) -> bool:
        return self.request.path.startswith(f"{PREFIX}/")

    @property
    def max_message_size(self) -> int:
        """The maximum bytes of a message. It is larger than for other sockets, because of widgets and their data."""
        return FRAME_MAX

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Return the binary subprotocol if the client offers it."""
        return V1 if V1 in subprotocols else None

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Subscribe the client to the kernel's messages, and start to send them."""
        super().open()
        self._subprotocol = self.selected_subprotocol
        if self._session.clients_must_leave.is_set():
            return  # the session was ended during the upgrade
        client = self.get_query_argument("session_id", "")[:CLIENT_MAX]
        self._subscription = self._session.channels.subscribe(client, self._is_behind)
        self._delivery = spawn(self._deliver(self._subscription), "channels")

    async def _deliver(self, subscription: Subscription) -> None:
        while (message := await subscription.take()) is not None:
            try:
                for each in readable(message) if self._is_open_webui else (message,):
                    await self._written(each)
            except WebSocketClosedError:
                subscription.put_back(message)
                self._session.channels.leave(subscription)
                return
        if not self._session.clients_must_leave.is_set():
            self.close(TAKEN_OVER, "another connection took over")

    def _written(self, message: Message) -> Awaitable[None]:
        """Send a message. The returned awaitable holds no copy of the message; only the connection has one."""
        frame, binary = encode(message, self._subprotocol)
        return self.write_message(frame, binary=binary)

    def _is_behind(self) -> None:
        self.gateway.metrics.connections.socket_refused("unread")
        self._connection.drop()

    async def received(self, message: str | bytes) -> None:
        """Forward a client's frame to the kernel."""
        try:
            request = decode(message, self._subprotocol)
        except InvalidRequest as error:
            self.close(MALFORMED, error.message[:100])
            return
        if request.channel not in CHANNELS or self._subscription is None:
            return  # all Jupyter servers drop such a message
        if request.type not in NO_ACTIVITY:
            self._session.touch()
        try:
            if request.type == "shutdown_request":
                await self._shut_down(request)
                return
            if request.type == "execute_request" or not self._session.reachable:
                # As in every dialect, a cell starts a new kernel after a dead one. Any request wakes a sleeping kernel.
                await self._session.settled_kernel()
            self._session.require_running()  # a frozen kernel would not answer
            self._session.channels.forward(
                self._subscription, request.channel, request.header, request.parts, request.buffers
            )
        except SessionError as error:
            self._refuse(request, error)

    async def _shut_down(self, request: Request) -> None:
        """Restart or end the kernel through its session, because the session must know of every end of its kernel."""
        restart = _asks_to_restart(request.parts[3])
        self._answer(request, "shutdown_reply", {"status": "ok", "restart": restart})
        if restart:
            await self._session.restart()
        elif not self._session.closed:  # if it is closed, the name may already be that of a new session
            await self.gateway.registry.end(self._session.key)

    def _refuse(self, request: Request, error: SessionError) -> None:
        """Send the error only to this client, because no other client has seen the request."""
        if self._subscription is not None:
            for message in refusal(request.channel, request.header, error):
                self._subscription.enqueue(message)

    def _answer(self, request: Request, msg_type: str, content: dict[str, object]) -> None:
        if self._subscription is not None:
            self._subscription.enqueue(gateway_message(request.channel, msg_type, content, request.header))

    async def send_last_messages(self) -> None:
        """Wait until all messages are sent, also those about the kernel's end."""
        if self._delivery is not None:
            await asyncio.wait({self._delivery})

    def on_close(self) -> None:
        """Detach a client that has left. The messages that it misses are kept for a while."""
        super().on_close()
        if self._delivery is not None:
            self._delivery.cancel()
        if self._subscription is not None:
            self._session.channels.leave(self._subscription)


def _asks_to_restart(content: bytes) -> bool:
    """Return whether a `shutdown_request` asks for a restart.

    Raises:
        InvalidRequest: when its content is not a JSON object.
    """
    try:
        asked = bounded_json.loads(content)
    except orjson.JSONDecodeError:
        asked = None
    if not isinstance(asked, dict):
        raise InvalidRequest("the content of a shutdown_request must be a JSON object", field="content")
    return asked.get("restart") is True
