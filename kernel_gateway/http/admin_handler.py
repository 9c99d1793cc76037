"""Base class of the handlers that only an admin may use, in any dialect."""

from __future__ import annotations

from kernel_gateway.errors import Forbidden
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.identity.keystore import Role


class AdminHandler(JsonHandler):
    """A handler that only an admin may use."""

    def prepare(self) -> None:
        """Refuse callers without the role admin."""
        super().prepare()
        if not self.gateway.origins.is_preflight(self.request) and self.caller.role is not Role.ADMIN:
            raise Forbidden
