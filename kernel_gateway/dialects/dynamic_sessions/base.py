"""Base of the handlers: the session that a request names, and the form of failures."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import Any

from kernel_gateway.http.formats import failure_text
from kernel_gateway.http.handlers import BaseHandler
from sessions.model.errors import InvalidRequest, SessionError, SessionNotFound
from sessions.model.values import NAME, SessionKey
from sessions.session.session import Session

#: characters of an identifier, at least and at most
IDENTIFIER = (4, 128)
#: the error code that clients read, by HTTP status
CODES = {
    HTTPStatus.BAD_REQUEST: "SessionRequestValidationFailed",
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "PayloadTooLarge",
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.NOT_IMPLEMENTED: "SessionRequestNotSupported",
}


class PoolHandler(BaseHandler):
    """A request to a pool. All pools are the same: the key decides whose session it is."""

    @property
    def identifier(self) -> str:
        """The identifier in the query.

        Raises:
            InvalidRequest: when there is none, or it has the wrong length.
        """
        identifier = self.raw_argument("identifier") or ""
        if not IDENTIFIER[0] <= len(identifier) <= IDENTIFIER[1]:
            raise InvalidRequest("identifier must have 4 to 128 characters", field="identifier")
        return identifier

    @property
    def key(self) -> SessionKey:
        """The key of the session: its identifier, or a digest of one that is no name of a session."""
        identifier = self.identifier
        if NAME.fullmatch(identifier):
            return SessionKey(self.tenant, identifier)
        digest = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()
        return SessionKey(self.tenant, f"ds-{digest[:40]}")

    async def session(self) -> Session:
        """Return the session, made on first use."""
        return await self.gateway.registry.get_or_create(self.key)

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 400 for a session that does not exist, as the service does."""
        return HTTPStatus.BAD_REQUEST if isinstance(failure, SessionNotFound) else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return a failure in the service's form, with our own code in `details`."""
        code = CODES.get(HTTPStatus(self.get_status()), "InternalServerError")
        if isinstance(failure, SessionNotFound):
            code = "SessionWithIdentifierNotFound"
        self.set_header("x-ms-error-code", code)
        details = [{"code": failure.code, "message": failure.resolution}]
        told = {"code": code, "message": failure_text(failure), "details": details, "traceId": self.request_id}
        return {"error": told}
