"""Base handlers of the dialect: they accept a key in the query, and send failures in Jupyter's format."""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.jupyter.models import find
from kernel_gateway.http.handlers import BaseHandler, JsonHandler, NotFoundHandler
from sessions.model.errors import SessionError
from sessions.session.session import Session


class JupyterHandler(BaseHandler):
    """A request of a Jupyter client."""

    key_in_query = True

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the gateway's own format, with the additional fields that Jupyter clients display."""
        shown = {"message": failure.message, "reason": failure.resolution}
        return super().render_failure(failure) | shown

    def session(self, kernel_id: str) -> Session:
        """Return the tenant's session with this kernel id."""
        return find(self.gateway.registry, self.tenant, kernel_id)


class RestHandler(JupyterHandler, JsonHandler):
    """A request of a Jupyter client, with JSON bodies."""


class UnsupportedHandler(JupyterHandler, NotFoundHandler):
    """A path of Jupyter Server that this gateway does not support: terminals, settings, and so on."""

    public = False
