"""Base handlers of the dialect: access to the control plane and to sandboxes, and the format of failures."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

from kernel_gateway.dialects.e2b.targets import ENVD, ID, INTERPRETER, Target, target_of
from kernel_gateway.dialects.e2b.tokens import access_token, is_token, traffic_token
from kernel_gateway.errors import NoSuchRoute
from kernel_gateway.http.formats import failure_text
from kernel_gateway.http.handlers import BaseHandler, JsonHandler
from kernel_gateway.identity.auth import Caller
from sessions.model.errors import ConnectionFailed, InvalidRequest, SandboxNotFound, SessionError, StartFailed
from sessions.model.values import SessionKey
from sessions.sandbox.sandbox import Sandbox

#: names of the only user of a sandbox, as clients know it. There is no root: what a client runs as root runs as this
#: user, to whom all files of the sandbox belong, and what only root may do fails in the sandbox
USERS = ("user", "root")
#: version of E2B's `envd` that clients find here. From it they know that uploads may be octet-streams and gzip
ENVD_VERSION = "0.5.7"
#: texts that clients search for in a message. Source: `e2b` 2.63, `e2b/exceptions.py`
NOT_FOUND = "The sandbox was not found"
NOT_OPEN = "The sandbox is running but port is not open"


class ControlHandler(JsonHandler):
    """A request to the control plane, with a key of the tenant."""

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the gateway's own format, with the additional flat fields that these clients read."""
        return super().render_failure(failure) | {"code": self.get_status(), "message": failure_text(failure)}

    def conflict(self, reason: str) -> None:
        """Answer that the sandbox is already in the wanted state. These clients do not treat that as a failure."""
        self.set_status(HTTPStatus.CONFLICT)
        self.finish_json({"code": self.get_status(), "message": reason})

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a running or paused sandbox of the tenant.

        Raises:
            SandboxNotFound: when there is no such sandbox, or it has ended.
        """
        if not ID.fullmatch(sandbox_id):
            raise SandboxNotFound
        sandbox = self.gateway.sandboxes.get(SessionKey(self.tenant, sandbox_id))
        if not sandbox.spec.secret:  # made by a client of another dialect
            raise SandboxNotFound
        return sandbox


class SandboxHandler(BaseHandler):
    """A request to a service of a sandbox, with a token of that sandbox."""

    #: ports of the services that have the handler's path
    ports: ClassVar[frozenset[int]] = frozenset({ENVD})
    target: Target | None
    sandbox: Sandbox
    #: functions that close the connections of the sandbox's clients when the sandbox is paused
    _among: set[Callable[[], None]] | None = None

    async def prepare(self) -> None:
        """Check the request, and wake the sandbox if it is paused and its client wants that."""
        super().prepare()
        if hasattr(self, "sandbox"):  # not so for a preflight
            await self.sandbox.wake()
            self._among = self.sandbox.pausing.connections
            self._among.add(self.http.close)

    def authenticate(self) -> Caller:
        """Return the owner of the sandbox. The answer to a wrong token is the same as for a missing sandbox.

        Raises:
            SandboxNotFound: when the request has no token of an existing sandbox.
            ConnectionFailed: when nothing listens on the port.
            NoSuchRoute: when the service does not have the path.
        """
        self.target = target_of(self.request)
        self.sandbox, caller = self.find_sandbox()
        if self.target is not None and self.target.port not in {ENVD, INTERPRETER}:
            raise ConnectionFailed(NOT_OPEN, port=self.target.port)
        if self.target is not None and self.target.port not in self.ports:
            raise NoSuchRoute
        return caller

    def find_sandbox(self) -> tuple[Sandbox, Caller]:
        """Return the sandbox that the request is for, and its owner.

        Raises:
            SandboxNotFound: when the request has no token of an existing sandbox.
        """
        name = self.target.sandbox if self.target is not None else ""
        sandbox = self.gateway.sandboxes.with_secret(name)
        # A missing sandbox is checked with a random secret, so that the response time does not reveal which ids exist.
        if not self._has_token(sandbox.spec.secret if sandbox else secrets.token_hex()) or sandbox is None:
            raise SandboxNotFound(NOT_FOUND)
        return self.admit(sandbox)

    def admit(self, sandbox: Sandbox) -> tuple[Sandbox, Caller]:
        """Return a sandbox and its owner, after its token or signature was checked.

        Raises:
            SandboxNotFound: when the sandbox's key was revoked, its time is over, or it is paused and no use wakes it.
        """
        caller = Caller(sandbox.key.tenant, key_id=sandbox.spec.key_id)
        if not self.gateway.keys.is_still_valid(caller):
            raise SandboxNotFound(NOT_FOUND)
        present = self.gateway.sandboxes.get(sandbox.key)
        if not present.spec.wake_lifetime:
            present.pausing.check()
        return present, caller

    def on_finish(self) -> None:
        """Forget the connection."""
        super().on_finish()
        self._forget()

    def on_connection_close(self) -> None:
        """Forget the connection."""
        super().on_connection_close()
        self._forget()

    def _forget(self) -> None:
        if self._among is not None:
            self._among.discard(self.http.close)

    def _has_token(self, secret: str) -> bool:
        headers = self.request.headers
        if is_token(headers.get("X-Access-Token", ""), access_token(secret)):
            return True
        of_code = self.target is not None and self.target.port != ENVD
        return of_code and is_token(headers.get("E2B-Traffic-Access-Token", ""), traffic_token(secret))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a failure. If the sandbox has ended meanwhile, close the connection, as clients expect."""
        if hasattr(self, "sandbox") and self.sandbox.closed:
            self.http.close()
        else:
            super().write_error(status_code, **kwargs)

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 502 only for a missing sandbox: clients recognise a missing sandbox by this status."""
        if isinstance(failure, StartFailed):
            return HTTPStatus.INTERNAL_SERVER_ERROR
        return HTTPStatus.BAD_GATEWAY if isinstance(failure, SandboxNotFound) else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the body in the format that clients read."""
        status = self.get_status()
        if isinstance(failure, SandboxNotFound):
            target = getattr(self, "target", None)
            return {"sandboxId": target.sandbox if target else "", "message": NOT_FOUND, "code": status}
        message = NOT_OPEN if failure.message == NOT_OPEN else failure_text(failure)
        told = {"code": status, "message": message}
        return (
            super().render_failure(failure) | told | ({"port": failure.details["port"]} if message is NOT_OPEN else {})
        )


class EnvdHandler(SandboxHandler):
    """A request to a sandbox's service for files and commands."""

    def check_user(self) -> None:
        """Check the user that the client wants to act as. A sandbox has only one user; see `USERS`.

        Raises:
            InvalidRequest: when the client names another user.
        """
        scheme, _, encoded = self.request.headers.get("Authorization", "").partition(" ")
        named = self.raw_argument("username") or ""
        if scheme.lower() == "basic" and not named:
            try:
                named = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[0]
            except ValueError:
                raise InvalidRequest("the user in the header Authorization cannot be read", field="username") from None
        if named not in {"", *USERS}:
            known = f"only {USERS[0]!r}, who is also {USERS[1]!r}"
            raise InvalidRequest(f"there is no user {named[:64]!r} in a sandbox here, {known}", field="username")


class InterpreterHandler(SandboxHandler, JsonHandler):
    """A request to the code interpreter of a sandbox."""

    ports = frozenset({INTERPRETER})

    def finish_failure(self, failure: SessionError) -> None:
        """Send the failure as plain text, because clients show the body unchanged."""
        if isinstance(failure, SandboxNotFound) or failure.message == NOT_OPEN:
            super().finish_failure(failure)
            return
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.finish(failure_text(failure))
