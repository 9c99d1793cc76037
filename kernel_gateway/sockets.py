"""What WebSockets of all dialects share: the way from request to upgrade."""

from __future__ import annotations

from abc import abstractmethod

from tornado.websocket import WebSocketHandler

from kernel_gateway.handlers import BaseHandler
from sessions.errors import InvalidRequest
from sessions.models import SessionKey
from sessions.session import Session


class SocketHandler(BaseHandler, WebSocketHandler):
    """A WebSocket of one session."""

    _session: Session

    async def prepare(self) -> None:
        """Check the key and have the session with its kernel, before the connection is upgraded."""
        super().prepare()
        if self.request.method != "GET":
            return  # there is no such method here
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidRequest("this path speaks WebSocket only", field="Upgrade")
        self._session = await self.gateway.registry.obtain(self.session_key())

    @abstractmethod
    def session_key(self) -> SessionKey:
        """Which session the path names.

        Raises:
            SessionError: it names none.
        """

    def check_origin(self, origin: str) -> bool:
        """Pages of the gateway's own origin may, and those that the operator allows."""
        return self.gateway.origins.allow(origin) or super().check_origin(origin)

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Begin."""
        self.set_nodelay(True)  # without it every small frame waits 40 ms
