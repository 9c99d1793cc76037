"""What WebSockets of all dialects share: the way from request to upgrade."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from tornado.websocket import WebSocketHandler

from kernel_gateway.handlers import BaseHandler
from sessions.errors import InvalidRequest
from sessions.models import SessionKey
from sessions.session import Session

#: close code of a socket whose key was revoked
REVOKED = 4401
#: seconds between two looks at that, for a socket that only listens
LOOK_INTERVAL = 1.0


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
        if self.caller.key_id is not None:
            self._look()

    def _look(self) -> None:
        if self.ws_connection is not None and self.allowed():
            asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._look)

    def allowed(self) -> bool:
        """Whether the key that it was opened with still opens anything; if not, the socket is closed."""
        if self.gateway.keys.still_knows(self.caller):
            return True
        self.close(REVOKED, "the key was revoked")
        return False
