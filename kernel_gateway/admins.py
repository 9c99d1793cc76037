"""Whatever only an admin may do, in any dialect."""

from __future__ import annotations

from kernel_gateway.errors import Forbidden
from kernel_gateway.handlers import JsonHandler
from kernel_gateway.keystore import Role


class AdminHandler(JsonHandler):
    """What only an admin may do."""

    def prepare(self) -> None:
        """Refuse everybody else."""
        super().prepare()
        if not self.gateway.origins.asks(self.request) and self.caller.role is not Role.ADMIN:
            raise Forbidden
