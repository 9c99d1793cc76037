"""Health of a sandbox's services, and the answer to unknown paths."""

from __future__ import annotations

from http import HTTPStatus

from kernel_gateway.dialects.e2b.base import SandboxHandler
from kernel_gateway.dialects.e2b.targets import ENVD, INTERPRETER
from kernel_gateway.errors import NotSupported


class HealthHandler(SandboxHandler):
    """`/health`, on the ports of both services."""

    ports = frozenset({ENVD, INTERPRETER})

    def get(self) -> None:
        """Answer that the sandbox exists."""
        if self.target is not None and self.target.port == INTERPRETER:
            self.finish_json("OK")
        else:
            self.set_status(HTTPStatus.NO_CONTENT)


class UnsupportedHandler(SandboxHandler):
    """Paths of a sandbox's services that this gateway does not support."""

    ports = frozenset({ENVD, INTERPRETER})

    async def prepare(self) -> None:
        """Check the token, and refuse every method."""
        await super().prepare()
        if not self.gateway.origins.is_preflight(self.request):
            raise NotSupported(f"{self.request.path[:100]}: sandboxes have no such call here")
