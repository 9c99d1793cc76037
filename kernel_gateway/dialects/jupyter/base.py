"""What all handlers of the dialect share: how a key may come, and how a failure looks."""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.jupyter.models import find
from kernel_gateway.handlers import BaseHandler, JsonHandler, NotFoundHandler
from sessions.errors import SessionError
from sessions.session import Session


class JupyterHandler(BaseHandler):
    """A request of a Jupyter client."""

    key_in_query = True

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """The gateway's own form, and what clients show of it."""
        shown = {"message": failure.message, "reason": failure.resolution}
        return super().render_failure(failure) | shown

    def session(self, kernel_id: str) -> Session:
        """The session behind a kernel id."""
        return find(self.gateway.registry, self.tenant, kernel_id)


class RestHandler(JupyterHandler, JsonHandler):
    """One whose bodies are JSON."""


class AbsentHandler(JupyterHandler, NotFoundHandler):
    """What a Jupyter server has and this gateway has not: terminals, contents, and so on."""

    public = False
