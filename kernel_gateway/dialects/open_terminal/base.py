"""Base handlers: whose sandbox a request is for, its paths, and the form of failures."""

from __future__ import annotations

import hashlib
import json
import posixpath
from http import HTTPStatus
from typing import Any, TypeVar

from kernel_gateway.config import Settings
from kernel_gateway.dialects.open_terminal.desks import Desk, Desks
from kernel_gateway.dialects.open_terminal.models import Query
from kernel_gateway.errors import Forbidden
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.formats import failure_text
from kernel_gateway.http.handlers import BaseHandler, JsonHandler
from kernel_gateway.http.request_body import validated
from kernel_gateway.identity.auth import Caller
from kernel_gateway.identity.keystore import Role
from sessions.guest.paths import sandbox_path, seen_path
from sessions.model.errors import ExecutionTimeout, InvalidRequest, SessionError
from sessions.model.values import SandboxSpec, SessionKey
from sessions.sandbox.sandbox import Sandbox

#: headers with the user, the chat, and the place of a chat that has a sandbox of its own
USER, CHAT, PLACE = "X-User-Id", "X-Session-Id", "X-Terminal-Context-Id"
#: maximum characters of each
NAME_MAX = 256
#: name of the template in the overview of sandboxes
TEMPLATE = "open-terminal"

Model = TypeVar("Model", bound=Query)


def sandbox_key(caller: Caller, user: str, place: str) -> SessionKey:
    """Return the key of the sandbox of a user, or, without a user, of the caller's key.

    Args:
        caller: owner of the key.
        user: id of the user; empty for none.
        place: place of the chat, if the client asks for a sandbox of its own for it; empty for none.

    Raises:
        Forbidden: when the caller's key may not name users.
        InvalidRequest: when a name is too long.
    """
    if user and caller.role is not Role.FRONTEND:
        raise Forbidden(
            f"this key may not name users ({USER}): `kernel-gateway keys add` makes one with --role frontend"
        )
    for header, value in ((USER, user), (PLACE, place)):
        if len(value) > NAME_MAX:
            raise InvalidRequest(f"{header} may have at most {NAME_MAX} characters", field=header)
    named = ["user", user] if user else ["key", caller.told_id or ""]
    digest = hashlib.sha256(json.dumps([*named, place]).encode()).hexdigest()
    return SessionKey(caller.tenant, f"ot-{digest[:40]}")


def sandbox_spec(settings: Settings) -> SandboxSpec:
    """Return the spec of a new sandbox."""
    return SandboxSpec(
        template=TEMPLATE,
        limits=settings.limits,
        idle_timeout=settings.idle_timeout,
        max_execute_timeout=settings.max_execute_timeout,
    )


class TerminalBaseHandler(BaseHandler):
    """A request of Open WebUI."""

    desks: Desks

    def initialize(self, gateway: Gateway, desks: Desks, dialect: str = "none") -> None:  # type: ignore[override]
        """Set up the handler with the desks of all sandboxes."""
        self.desks = desks
        super().initialize(gateway, dialect)

    @property
    def chat(self) -> str:
        """The chat of the request; empty for none.

        Raises:
            InvalidRequest: when its id is too long.
        """
        chat = self.request.headers.get(CHAT, "")
        if len(chat) > NAME_MAX:
            raise InvalidRequest(f"{CHAT} may have at most {NAME_MAX} characters", field=CHAT)
        return chat

    @property
    def key(self) -> SessionKey:
        """The key of the sandbox that the request is for; see `sandbox_key`."""
        headers = self.request.headers
        return sandbox_key(self.caller, headers.get(USER, ""), headers.get(PLACE, ""))

    async def sandbox(self) -> Sandbox:
        """Return the sandbox, made on first use."""
        return await self.gateway.sandboxes.get_or_create(self.key, sandbox_spec(self.tenant_settings))

    def desk(self, sandbox: Sandbox) -> Desk:
        """Return what the client comes back to in a sandbox."""
        return self.desks.of(sandbox)

    def absolute(self, sandbox: Sandbox, path: str) -> str:
        """Return a path as processes in the sandbox write it. A relative one begins in the chat's working directory.

        Raises:
            InvalidRequest: when the path leads neither into the workspace nor to `/tmp`.
        """
        if path.startswith("~"):
            return seen_path(sandbox_path(path))
        joined = posixpath.normpath(posixpath.join(self.desk(sandbox).directory(self.chat), path))
        return seen_path(sandbox_path(joined))

    def query(self, model: type[Model]) -> Model:
        """Return the query as a model. Values that are the word `null` count as absent, as in the original.

        Raises:
            InvalidRequest: when the query does not fit the model.
        """
        given: dict[str, Any] = {}
        for name in self.request.query_arguments:
            values = [value for value in self.get_query_arguments(name, strip=False) if value != "null"]
            if name in model.model_fields and values:
                given[name] = values if name in model.LISTS else values[-1]
        return validated(model, given)

    # -- failures -------------------------------------------------------------------------------------------

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 422 for fields that do not fit, and 408 for what took too long."""
        if "fields" in failure.details:
            return HTTPStatus.UNPROCESSABLE_ENTITY
        return HTTPStatus.REQUEST_TIMEOUT if isinstance(failure, ExecutionTimeout) else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return a failure in the form of FastAPI, with our own code."""
        text = f"{failure_text(failure)} ({failure.code})"
        detail: Any = text
        if fields := failure.details.get("fields"):
            detail = [{"loc": [each["field"]], "msg": each["problem"], "type": "value_error"} for each in fields]
        return {"detail": detail, "error": text, "code": failure.code, "request_id": self.request_id}


class TerminalHandler(TerminalBaseHandler, JsonHandler):
    """A request of Open WebUI with a JSON body, or without a body."""
