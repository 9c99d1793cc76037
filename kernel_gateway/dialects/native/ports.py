"""Servers that a session's code has started: by their path with a key, or by a signed link."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus

from pydantic import BaseModel, Field

from kernel_gateway.dialects.native.sessions import ExistingHandler
from kernel_gateway.errors import Unauthorized
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.request_body import Body
from kernel_gateway.identity.auth import Caller
from kernel_gateway.ports.handler import PortHandler, port_of
from kernel_gateway.ports.headers import Place
from kernel_gateway.ports.links import Link, read_token
from kernel_gateway.times import rfc3339
from sessions.model.errors import InvalidRequest, SessionNotFound
from sessions.model.values import SessionKey
from sessions.session.session import Session

#: seconds for which a link is valid if its client names no number, and at most
LINK_SECONDS, LINK_SECONDS_MAX = 3600, 86400
#: what pages of every origin may do with a link's answers. A page on a link has an origin of its own, for which even
#: its own path is another origin. A link's URL is its only credential, so a page that knows it may read the answers.
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Expose-Headers": "*",
}


class NewLink(Body):
    """A link to make."""

    port: int = Field(gt=0, lt=1 << 16, description="port on which the server listens")
    seconds: int = Field(LINK_SECONDS, gt=0, le=LINK_SECONDS_MAX, description="for so long the link is valid")


class LinkInfo(BaseModel):
    """A link to a port."""

    path: str = Field(description="path of the URL, for the address by which you reach the gateway")
    url: str = Field(description="the same with the address of this request")
    expires_at: str


class LinksHandler(ExistingHandler):
    """`/v1/sessions/{name}/links`."""

    def post(self, name: str) -> None:
        """Make a signed link to a port of the session."""
        body, session = self.body(NewLink), self.session(name)
        until = int(time.time()) + body.seconds
        link = Link(self.tenant, name, session.id, body.port, until, self.caller.key_id)
        path = link.path(self.gateway.links_secret)
        self.set_status(HTTPStatus.CREATED)
        url = f"{self.request.protocol}://{self.request.host}{path}"
        self.finish_json(LinkInfo(path=path, url=url, expires_at=rfc3339(until)).model_dump())


class PortRootHandler(ExistingHandler):
    """`/v1/sessions/{name}/ports/{port}`."""

    def get(self, _name: str, port: str) -> None:
        """Redirect to the path with a slash, from which relative links of the server's pages work."""
        port_of(port)
        self.redirect(f"{port}/", status=HTTPStatus.PERMANENT_REDIRECT)


class _OwnOriginHandler(PortHandler):
    """A server at a path of the gateway's own origin."""

    #: parts of the path before the server's own
    parts: int

    def target_path(self) -> str:
        """Return the rest of the path and the query, as the client has sent them."""
        path = "/" + self.request.path.split("/", self.parts)[self.parts]
        return f"{path}?{self.request.query}" if self.request.query else path

    def place(self, port: int) -> Place:
        """Return a path's place: the server gets no name of the gateway's."""
        return Place(f"localhost:{port}", own_host=False)


class SessionPortHandler(_OwnOriginHandler):
    """`/v1/sessions/{name}/ports/{port}/{path}`."""

    parts = 6

    async def find(self) -> tuple[Session, int]:
        """Return the tenant's session and the port."""
        name, port, _path = self.path_args
        return self.gateway.registry.get(SessionKey(self.tenant, name)), port_of(port)


def _without_token(path: str) -> str:
    """Return the path of a link without the token, which is a credential."""
    return "/".join(path.split("/")[:6])


class LinkRootHandler(BaseHandler):
    """`/v1/ports/{tenant}/{session}/{port}/{token}`."""

    public = True

    @property
    def logged_path(self) -> str:
        """The path without the token."""
        return _without_token(self.request.path)

    def get(self, _tenant: str, _session: str, _port: str, token: str) -> None:
        """Redirect to the path with a slash: people and chats leave the last slash out."""
        self.redirect(f"{token}/", status=HTTPStatus.PERMANENT_REDIRECT)


class LinkedPortHandler(_OwnOriginHandler):
    """`/v1/ports/{tenant}/{session}/{port}/{token}/{path}`."""

    parts = 7
    _link: Link
    _session: Session

    @property
    def logged_path(self) -> str:
        """The path without the token."""
        return _without_token(self.request.path)

    def set_default_headers(self) -> None:
        """Let pages of every origin read even the gateway's own failures."""
        super().set_default_headers()
        for name, value in CORS.items():
            self.set_header(name, value)

    def readers(self) -> Mapping[str, str]:
        """Let pages of every origin read the answers."""
        return CORS

    def authenticate(self) -> Caller:
        """Return the caller that has made the link. Missing sessions and wrong tokens get the same answer.

        Raises:
            Unauthorized: when the link is not valid, has ended, or its key was revoked.
        """
        tenant, name, port, token, _path = self.path_args
        try:
            self._session = self.gateway.registry.get(SessionKey(tenant, name))
            until, key_id, signature = read_token(token)
            self._link = Link(tenant, name, self._session.id, port_of(port), until, key_id)
        except (SessionNotFound, InvalidRequest):
            raise Unauthorized("the link is not valid") from None
        if not self._link.is_signed(self.gateway.links_secret, signature):
            raise Unauthorized("the link is not valid")
        if not self.may_go_on():
            raise Unauthorized("the link is not valid any more")
        return self._link.caller

    async def find(self) -> tuple[Session, int]:
        """Return the link's session and port."""
        return self._session, self._link.port

    def may_go_on(self) -> bool:
        """Return whether the link and its key are still valid."""
        return time.time() < self._link.until and self.gateway.keys.is_still_valid(self._link.caller)

    async def options(self, *path: str) -> None:  # type: ignore[override]  # tornado waits for it
        """Answer a browser's preflight request; all others go to the server."""
        if "Access-Control-Request-Method" not in self.request.headers:
            await super().options(*path)
