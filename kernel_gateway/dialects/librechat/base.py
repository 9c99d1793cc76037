"""Base of the handlers: who asks, whose a file is, and the form of failures."""

from __future__ import annotations

from typing import Any

import orjson

from kernel_gateway.errors import Forbidden, NotSupported, Unauthorized
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.identity.auth import Caller
from kernel_gateway.identity.user_tokens import UserTokens
from sessions.file_store.store import Place
from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionError

#: seconds after which a client may ask again when it was refused for its quota
RETRY_AFTER = 1
#: maximum characters of an id in a request
ID_MAX = 256


def owner_of(user: str, kind: str, resource: str, version: str | None) -> str:
    """Return who owns a file: a user, whatever the id in the request says, or an agent or a skill of the tenant.

    Raises:
        InvalidRequest: when there is no such kind, or the id of the agent or skill is missing.
    """
    if kind == "user":
        return orjson.dumps(["user", user]).decode()
    if kind not in {"agent", "skill"}:
        raise InvalidRequest("kind must be user, agent or skill", field="kind")
    if not 0 < len(resource) <= ID_MAX or len(version or "") > ID_MAX:
        raise InvalidRequest(f"a file of kind {kind} needs the id of the {kind}", field="id")
    return orjson.dumps([kind, resource] if kind == "agent" else [kind, resource, version or ""]).decode()


class CodeHandler(BaseHandler):
    """A request of LibreChat."""

    #: id of the user in the tenant. Empty: the caller has a key, and the users of this LibreChat are not told apart.
    user = ""

    def authenticate(self) -> Caller:
        """Return the caller: by the token that LibreChat has signed for its user, or by a key.

        Raises:
            Unauthorized: when the request has neither.
        """
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        tokens = self.gateway.user_tokens
        if tokens is None or scheme.lower() != "bearer" or not UserTokens.is_one(token):
            return super().authenticate()
        user = tokens.user(token)
        self.user = user.name
        return user.caller

    def place(self, batch: str) -> Place:
        """Return the place that a request for stored files names: its owner is in the query."""
        kind, resource = self.raw_argument("kind") or "user", self.raw_argument("id") or ""
        return Place(self.tenant, owner_of(self.user, kind, resource, self.raw_argument("version")), batch)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return a failure in the form that clients read, with our own code in `details`."""
        details = {"code": failure.code, "resolution": failure.resolution, "request_id": self.request_id}
        told: dict[str, Any] = {"error": failure.message, "message": failure.message, "details": details}
        match failure:
            case QuotaExceeded():
                seconds = failure.details.get("retry_after", RETRY_AFTER)
                return told | {"error": "rate_limited", "retry_after_seconds": seconds}
            case NotSupported():
                return told | {"error": "unsupported_capability"}
            case Unauthorized() | Forbidden():
                return told | {"error": "Unauthorized"}
        return told
