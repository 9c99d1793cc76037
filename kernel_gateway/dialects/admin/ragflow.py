"""RAGFlow's own form, `/api/v1/admin/sandbox`, in its envelope. Source: its admin server's routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.admins import AdminHandler
from kernel_gateway.dialects.admin.models import Saved, Sent, described, schema_json
from sessions.errors import SessionError

#: of callers who may not; every other failure is HTTP 400, and a fault of ours is told in the body
_NOT_ALLOWED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class RagflowHandler(AdminHandler):
    """What all of them share."""

    def succeed(self, data: Any, message: str = "success") -> None:
        """Answer in the envelope."""
        self.finish_json({"code": 0, "message": message, "data": data})

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """As RAGFlow has it."""
        status = super().status_of(failure)
        return status if status in _NOT_ALLOWED else HTTPStatus.BAD_REQUEST

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """The envelope, and our own code and details beside it."""
        ours = super().status_of(failure) >= HTTPStatus.INTERNAL_SERVER_ERROR
        return {
            "code": (HTTPStatus.INTERNAL_SERVER_ERROR if ours else self.status_of(failure)).value,
            "message": failure.message,
            "data": None,
            "error_code": failure.code,
            "details": failure.details,
        }


class ProvidersHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/providers`."""

    def get(self) -> None:
        """List them."""
        self.succeed([described(provider) for provider in self.gateway.provider_settings.all()])


class SchemaHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/providers/{id}/schema`."""

    def get(self, provider: str) -> None:
        """The fields of its configuration."""
        self.succeed(schema_json(self.gateway.provider_settings.schema(provider)))


class ConfigHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/config`."""

    def get(self) -> None:
        """The active provider, and how it is configured."""
        settings = self.gateway.provider_settings
        self.succeed({"provider_type": settings.active, "config": settings.shown(settings.active)})

    async def post(self) -> None:
        """Keep a configuration."""
        body, settings = self.body(Saved), self.gateway.provider_settings
        await settings.save(body.provider_type, body.config, activate=body.set_active, trial=body.test_connection)
        kept = {"provider_type": body.provider_type, "config": settings.shown(body.provider_type)}
        self.succeed(kept, "Sandbox configuration updated successfully")


class TestHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/test`."""

    async def post(self) -> None:
        """Run a small program with a configuration that is not kept."""
        body = self.body(Sent)
        trial = await self.gateway.provider_settings.test(body.provider_type, body.config)
        result = trial.result
        details = {
            "exit_code": result.exit_code if result else None,
            "execution_time": result.execution_time if result else None,
            "stdout": result.stdout if result else "",
            "stderr": result.stderr if result else "",
            "latency_ms": round(trial.latency * 1000, 3),
            "error_code": trial.error.code if trial.error else None,
        }
        self.succeed({"success": trial.success, "message": trial.message, "details": details})


_PREFIX = r"/api/v1/admin/sandbox"
ROUTES = (
    (_PREFIX + "/providers", ProvidersHandler),
    (_PREFIX + "/providers/([^/]+)/schema", SchemaHandler),
    (_PREFIX + "/config", ConfigHandler),
    (_PREFIX + "/test", TestHandler),
)
