"""What all handlers of the dialect share: how a key may come, and how a failure looks."""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.jupyter.models import find
from kernel_gateway.errors import NoSuchRoute
from kernel_gateway.handlers import JsonHandler
from sessions.errors import SessionError
from sessions.session import Session


def shown(failure: SessionError) -> dict[str, Any]:
    """What Jupyter's clients show of a failure."""
    return {"message": failure.message, "reason": failure.resolution}


class JupyterHandler(JsonHandler):
    """A request of a Jupyter client."""

    key_in_query = True

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """The gateway's own form, and what clients read."""
        return super().render_failure(failure) | shown(failure)

    def session(self, kernel_id: str) -> Session:
        """The session behind a kernel id."""
        return find(self.gateway.registry, self.tenant, kernel_id)


class AbsentHandler(JupyterHandler):
    """What a Jupyter server has and this gateway has not: terminals, contents, and so on."""

    def prepare(self) -> None:
        """Say so, whatever the method."""
        super().prepare()
        raise NoSuchRoute
