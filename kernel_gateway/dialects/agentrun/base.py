"""Base handlers of the dialect: authentication, the envelope of answers, and the format of failures."""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus
from typing import Any

from kernel_gateway.errors import Unauthorized
from kernel_gateway.http.formats import failure_text
from kernel_gateway.http.handlers import BaseHandler, JsonHandler, Model
from kernel_gateway.identity.auth import Caller
from kernel_gateway.identity.signatures import BODY_DIGEST, UNSIGNED
from sessions.model.errors import InvalidRequest, SandboxNotFound, SessionError
from sessions.model.values import NAME, SessionKey
from sessions.sandbox.sandbox import Sandbox

#: the error code that clients read, by HTTP status
CODES = {
    HTTPStatus.BAD_REQUEST: "INVALID_REQUEST",
    HTTPStatus.UNAUTHORIZED: "UNAUTHORIZED",
    HTTPStatus.FORBIDDEN: "ERR_FORBIDDEN",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.CONFLICT: "CONFLICT",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "PAYLOAD_TOO_LARGE",
    HTTPStatus.UNPROCESSABLE_ENTITY: "INVALID_REQUEST",
    HTTPStatus.TOO_MANY_REQUESTS: "TOO_MANY_REQUESTS",
    HTTPStatus.INSUFFICIENT_STORAGE: "INSUFFICIENT_STORAGE",
    HTTPStatus.SERVICE_UNAVAILABLE: "SERVICE_UNAVAILABLE",
}


class AgentRunBaseHandler(BaseHandler):
    """A request of an AgentRun client."""

    def authenticate(self) -> Caller:
        """Return the caller, identified by a key or by the signature that these clients make."""
        return self.gateway.keys.caller_by_signature(self.request)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the gateway's own format, with the additional flat fields that these clients read."""
        code = CODES.get(HTTPStatus(self.get_status()), "ERR_INTERNAL_SERVER")
        told = {"code": code, "requestId": self.request_id, "message": failure_text(failure)}
        return super().render_failure(failure) | told

    def check_digest(self, digest: str) -> None:
        """Check that the body is the one that was signed.

        Args:
            digest: SHA-256 of the body, in hexadecimal.

        Raises:
            Unauthorized: when the header with the signed digest has another digest.
        """
        told = self.request.headers.get(BODY_DIGEST, UNSIGNED).strip()
        if told != UNSIGNED and told.lower() != digest:
            raise Unauthorized("the body is not the one that was signed")

    def key(self, sandbox_id: str) -> SessionKey:
        """Return the key of a sandbox.

        Raises:
            SandboxNotFound: when the id is not valid.
        """
        if not NAME.fullmatch(sandbox_id):
            raise SandboxNotFound
        return SessionKey(self.tenant, sandbox_id)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a running sandbox of the tenant.

        Raises:
            SandboxNotFound: when there is no such sandbox, or it has ended.
        """
        return self.gateway.sandboxes.get(self.key(sandbox_id))


class AgentRunHandler(AgentRunBaseHandler, JsonHandler):
    """A request of an AgentRun client, with JSON bodies."""

    def body(self, model: type[Model]) -> Model:
        """Return the request's body as `model`.

        Raises:
            InvalidRequest: when the body does not fit the model.
            Unauthorized: when the body is not the one that was signed.
        """
        self.check_digest(hashlib.sha256(self._received).hexdigest())
        return super().body(model)

    def path_argument(self, default: str | None = None) -> str:
        """Return the path in the query.

        Args:
            default: the path if the query has none. None means that the query must have a path.

        Raises:
            InvalidRequest: when the query must have a path, but has none.
        """
        path = self.raw_argument("path")
        if path is None and default is None:
            raise InvalidRequest("the query has no path", field="path")
        return path if path is not None else default or ""

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number of the query, at least 1.

        Args:
            name: name of the number in the query.
            default: the number if the query has none.
            most: the maximum. A larger number is lowered to it.

        Raises:
            InvalidRequest: when the value is not a number of at least 1.
        """
        value = self.get_query_argument(name, "") or str(default)
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) < 1:
            raise InvalidRequest(f"{name} must be a number from 1 on", field=name)
        return min(int(value), most)

    def finish_enveloped(self, data: dict[str, Any], *, flat: bool = False) -> None:
        """Answer in the envelope that the control plane and the calls on whole sandboxes use.

        Args:
            data: content of the answer.
            flat: True to repeat the content outside the envelope, for clients that follow only the vendor's page.
        """
        envelope = {"code": "SUCCESS", "requestId": self.request_id, "data": data}
        self.finish_json({**data, **envelope} if flat else envelope)
