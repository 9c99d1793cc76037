"""The common part of all dialects' WebSockets: the path from request to upgrade."""

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
#: seconds between two checks for a revoked key, for a socket whose client only listens
LOOK_INTERVAL = 1.0


class SocketHandler(BaseHandler, WebSocketHandler):
    """A WebSocket of one session."""

    _session: Session

    async def prepare(self) -> None:
        """Check the key and get or create the session with its kernel, before the connection is upgraded."""
        super().prepare()
        if self.request.method != "GET":
            return  # tornado refuses the method
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidRequest("this path speaks WebSocket only", field="Upgrade")
        self._session = await self.gateway.registry.get_or_create(self.session_key())

    @abstractmethod
    def session_key(self) -> SessionKey:
        """Return the key of the session that the path names.

        Raises:
            SessionError: when the path names no session.
        """

    def check_origin(self, origin: str) -> bool:
        """Return True for pages of the gateway's own origin and of origins that the operator allows."""
        return self.gateway.origins.allow(origin) or super().check_origin(origin)

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Set up the open socket, and start to check its key."""
        self.set_nodelay(True)  # otherwise every small frame waits 40 ms
        if self.caller.key_id is not None:
            self._check_key()

    def _check_key(self) -> None:
        if self.ws_connection is not None and self.allowed():
            asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._check_key)

    def allowed(self) -> bool:
        """Return True if the key that opened the socket is still valid; close the socket if not."""
        if self.gateway.keys.is_still_valid(self.caller):
            return True
        self.close(REVOKED, "the key was revoked")
        return False
