"""Servers that code has started in a sandbox: `get_host(port)` of E2B's SDKs, for every port but those of the services.

A server has a host name of its own, `<port>-<sandbox>.<domain>`, if the gateway is reached by names. Otherwise clients
name sandbox and port in headers, and the answers come from the gateway's own origin.
Source of the texts: E2B's proxy, `e2b-dev/infra`, `packages/shared/pkg/proxy`.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from tornado.httputil import HTTPServerRequest

from kernel_gateway.dialects.e2b.base import NOT_FOUND, NOT_OPEN, SandboxHandler
from kernel_gateway.dialects.e2b.targets import ENVD, INTERPRETER, named_by_host, target_of
from kernel_gateway.dialects.e2b.tokens import is_token, traffic_token
from kernel_gateway.errors import Forbidden, Unauthorized
from kernel_gateway.identity.auth import Caller
from kernel_gateway.ports.failure_page import wants_page
from kernel_gateway.ports.handler import PortHandler
from kernel_gateway.ports.headers import KEY_HEADERS, Place
from sessions.model.errors import InvalidRequest, PortNotOpen, PortsUnavailable, SandboxNotFound, SessionError
from sessions.sandbox.sandbox import Sandbox

#: header with the token of a sandbox whose ports are not public
TOKEN = "E2b-Traffic-Access-Token"  # noqa: S105 - the header's name
PORT_MAX = 65535
#: texts of refusals
MISSING = "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"
INVALID = "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"
NOT_RESUMED = "This sandbox can't be resumed with the credentials provided. Check your access token and try again."


def serves(request: HTTPServerRequest) -> bool:
    """Return whether a request is for a port of a sandbox besides those of its services."""
    target = target_of(request)
    return target is not None and target.port not in {0, ENVD, INTERPRETER}


class SandboxPortHandler(PortHandler, SandboxHandler):
    """A request to a port of a sandbox, with any path."""

    def authenticate(self) -> Caller:
        """Return the owner of the sandbox. Ports are public unless the sandbox was created otherwise.

        Raises:
            SandboxNotFound: when there is no such sandbox, or it is paused and no use wakes it.
            InvalidRequest: when there is no such port.
            Forbidden: when the sandbox's ports are not public, and the request has no right token.
        """
        self.target = target_of(self.request)
        if self.target is None or self.target.port > PORT_MAX:
            raise InvalidRequest("Invalid sandbox port", field="port")
        sandbox = self.gateway.sandboxes.with_secret(self.target.sandbox)
        if sandbox is None:
            raise SandboxNotFound(NOT_FOUND)
        self._check_token(sandbox)
        self.sandbox, caller = self.admit(sandbox)
        return caller

    def _check_token(self, sandbox: Sandbox) -> None:
        if sandbox.spec.public_ports:
            return
        given = self.request.headers.get(TOKEN)
        if given is not None and is_token(given, traffic_token(sandbox.spec.secret)):
            return
        if sandbox.pausing.paused:
            raise Forbidden(NOT_RESUMED)
        raise Forbidden(MISSING if given is None else INVALID)

    async def find(self) -> tuple[Sandbox, int]:
        """Return the sandbox and the port."""
        return self.sandbox, self.target.port if self.target is not None else 0

    def target_path(self) -> str:
        """Return path and query unchanged."""
        return self.request.uri or "/"

    def place(self, port: int) -> Place:
        """Return the place: a host name of its own, or the gateway's origin if headers name the sandbox."""
        masked = self.sandbox.spec.request_host.replace("${PORT}", str(port))
        own_host = named_by_host(self.request)
        host = masked or (self.request.host if own_host else f"localhost:{port}")
        return Place(host, own_host, self._withheld() if own_host else frozenset())

    def _withheld(self) -> frozenset[str]:
        """Return the headers of a key of the gateway. Other credentials are for the server."""
        try:
            self.gateway.keys.caller(self.request, as_password=True)
        except Unauthorized:
            return frozenset()
        return KEY_HEADERS

    def tunnel_begins(self, cut: Callable[[], None]) -> Callable[[], None]:
        """Let a pause of the sandbox end the WebSocket."""
        connections = self.sandbox.pausing.connections
        connections.add(cut)
        return lambda: connections.discard(cut)

    # -- failures -------------------------------------------------------------------------------------------

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 502 for every port that cannot be reached."""
        return HTTPStatus.BAD_GATEWAY if isinstance(failure, PortsUnavailable) else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the body in the format of E2B's proxy."""
        target = getattr(self, "target", None)
        told = {"sandboxId": target.sandbox if target else "", "code": self.get_status()}
        if isinstance(failure, PortNotOpen):
            return told | {"message": NOT_OPEN, "port": target.port if target else 0}
        if isinstance(failure, PortsUnavailable):  # clients look for the text, and people want the reason
            return told | {"message": f"{NOT_OPEN}: {failure.message}", "port": target.port if target else 0}
        if isinstance(failure, Forbidden):
            return told | {"message": failure.message}
        return super().render_failure(failure)

    def finish_failure(self, failure: SessionError) -> None:
        """Send what is wrong with the port as plain text, all else as JSON; a browser gets a page."""
        if isinstance(failure, InvalidRequest) and not wants_page(self.request.method, self.request.headers):
            self.set_status(HTTPStatus.BAD_REQUEST)
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish(failure.message)
        else:
            super().finish_failure(failure)
