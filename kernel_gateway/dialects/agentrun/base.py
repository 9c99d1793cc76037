"""What all handlers of the dialect share: who asks, how an answer is wrapped, and how a failure looks."""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus
from typing import Any

from kernel_gateway.auth import Caller
from kernel_gateway.dialects.agentrun.models import sentences
from kernel_gateway.errors import Unauthorized
from kernel_gateway.handlers import BaseHandler, JsonHandler, Model
from kernel_gateway.signatures import BODY_DIGEST
from sessions.errors import InvalidRequest, SandboxNotFound, SessionError
from sessions.models import NAME, SessionKey
from sessions.sandbox import Sandbox

#: how clients know what went wrong, by HTTP status
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


class SandboxAware(BaseHandler):
    """A request of an AgentRun client."""

    def authenticate(self) -> Caller:
        """By a key, or by the signature that these clients make."""
        return self.gateway.keys.signer(self.request)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """What these clients read stands flat beside the gateway's own form."""
        code = CODES.get(HTTPStatus(self.get_status()), "ERR_INTERNAL_SERVER")
        told = {"code": code, "requestId": self.request_id, "message": sentences(failure)}
        return super().render_failure(failure) | told

    def key(self, sandbox_id: str) -> SessionKey:
        """The domain's name of a sandbox.

        Raises:
            SandboxNotFound: no sandbox can have this id.
        """
        if not NAME.fullmatch(sandbox_id):
            raise SandboxNotFound
        return SessionKey(self.tenant, sandbox_id)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox that is to be used.

        Raises:
            SandboxNotFound: there is none, or it has ended.
        """
        return self.gateway.sandboxes.get(self.key(sandbox_id))


class AgentRunHandler(SandboxAware, JsonHandler):
    """One whose bodies are JSON."""

    def body(self, model: type[Model]) -> Model:
        """The request's body.

        Raises:
            InvalidRequest: it is not of the model's form.
            Unauthorized: it is not the one that was signed.
        """
        digest = self.request.headers.get(BODY_DIGEST, "")
        if re.fullmatch("[0-9a-f]{64}", digest) and hashlib.sha256(self._received).hexdigest() != digest:
            raise Unauthorized("the body is not the one that was signed")
        return super().body(model)

    def path_argument(self, default: str | None = None) -> str:
        """The path in the query as it is: tornado's own reading has blanks where it holds control characters.

        Args:
            default: what it is when there is none.

        Raises:
            InvalidRequest: there is none, or it is no text.
        """
        values = self.request.query_arguments.get("path")
        if values:
            return self.decode_argument(values[-1], "path")
        if default is None:
            raise InvalidRequest("the query names no path", field="path")
        return default

    def number(self, name: str, default: int, most: int) -> int:
        """A number of the query, from 1 on.

        Args:
            name: what it is called.
            default: what it is when it is not there.
            most: a larger one means this.

        Raises:
            InvalidRequest: it is none.
        """
        value = self.get_query_argument(name, "") or str(default)
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) < 1:
            raise InvalidRequest(f"{name} must be a number from 1 on", field=name)
        return min(int(value), most)

    def finish_enveloped(self, data: dict[str, Any], *, flat: bool = False) -> None:
        """Answer as the control plane and the calls on whole sandboxes do.

        Args:
            data: what is answered.
            flat: put it beside the envelope too, for clients that know only the vendor's page.
        """
        envelope = {"code": "SUCCESS", "requestId": self.request_id, "data": data}
        self.finish_json({**data, **envelope} if flat else envelope)
