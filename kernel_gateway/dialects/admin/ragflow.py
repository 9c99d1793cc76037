"""The API `/api/v1/admin/sandbox` of RAGFlow's admin server, with its envelope. Source: the routes of that server."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.admin.models import ProviderConfig, SaveConfig, provider_json, schema_json
from kernel_gateway.http.admin_handler import AdminHandler
from sessions.model.errors import SessionError

#: statuses for callers without permission. All other failures have the status 400; the code in the body shows whether
#: the gateway is at fault
_NOT_ALLOWED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class RagflowHandler(AdminHandler):
    """Base of the handlers of this API."""

    def succeed(self, data: Any, message: str = "success") -> None:
        """Send a success in the envelope."""
        self.finish_json({"code": 0, "message": message, "data": data})

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return the status that RAGFlow uses."""
        status = super().status_of(failure)
        return status if status in _NOT_ALLOWED else HTTPStatus.BAD_REQUEST

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the envelope, with our own code and details added."""
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
        """List the providers."""
        self.succeed([provider_json(provider) for provider in self.gateway.provider_settings.all()])


class SchemaHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/providers/{id}/schema`."""

    def get(self, provider: str) -> None:
        """Send the fields of the provider's configuration."""
        self.succeed(schema_json(self.gateway.provider_settings.schema(provider)))


class ConfigHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/config`."""

    def get(self) -> None:
        """Send the active provider and its configuration."""
        settings = self.gateway.provider_settings
        self.succeed({"provider_type": settings.active, "config": settings.shown(settings.active)})

    async def post(self) -> None:
        """Save a configuration."""
        body, settings = self.body(SaveConfig), self.gateway.provider_settings
        await settings.save(body.provider_type, body.config, activate=body.set_active, trial=body.test_connection)
        kept = {"provider_type": body.provider_type, "config": settings.shown(body.provider_type)}
        self.succeed(kept, "Sandbox configuration updated successfully")


class TestHandler(RagflowHandler):
    """`/api/v1/admin/sandbox/test`."""

    async def post(self) -> None:
        """Run a small program with a configuration that is not saved."""
        body = self.body(ProviderConfig)
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
