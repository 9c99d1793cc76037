"""The API `/api/admin/sandbox` of RAGFlow's specification. Source: RAGFlow's `sandbox_spec.md`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.admin.models import (
    ActivateProvider,
    ProviderConfig,
    SaveConfig,
    provider_json,
    schema_json,
)
from kernel_gateway.http.admin_handler import AdminHandler
from sessions.model.errors import ConnectionFailed, SessionError, SettingsUnreadable
from sessions.providers.settings import ProviderSettings


class SpecificationHandler(AdminHandler):
    """Base of the handlers of this API."""

    @property
    def settings_of_providers(self) -> ProviderSettings:
        """The settings of the providers."""
        return self.gateway.provider_settings

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 400 for a provider that cannot be reached, because the submitted configuration is wrong."""
        return HTTPStatus.BAD_REQUEST if isinstance(failure, ConnectionFailed) else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the body: `error` is a sentence, `details` has the problems of fields. The other keys are our own."""
        return {
            "error": failure.message,
            "error_code": failure.code,
            "resolution": failure.resolution,
            "details": failure.details.get("fields", failure.details),
            "request_id": self.request_id,
        }


class ProvidersHandler(SpecificationHandler):
    """`/api/admin/sandbox/providers`."""

    def get(self) -> None:
        """List the providers with the schemas of their configurations."""
        providers = [
            provider_json(provider) | {"config_schema": schema_json(provider.get_config_schema())}
            for provider in self.settings_of_providers.all()
        ]
        self.finish_json({"data": providers})


class ConfigHandler(SpecificationHandler):
    """`/api/admin/sandbox/config`."""

    def get(self) -> None:
        """Send the active provider and all configurations. `errors` has an error for each unreadable configuration."""
        data: dict[str, Any] = {"active": self.settings_of_providers.active}
        errors: dict[str, Any] = {}
        for provider in self.settings_of_providers.all():
            try:
                data[provider.id] = self.settings_of_providers.shown(provider.id)
            except SettingsUnreadable as error:
                data[provider.id] = {}
                errors[provider.id] = error.as_dict()
        self.finish_json({"data": data, "errors": errors})

    async def post(self) -> None:
        """Save a configuration."""
        body = self.body(SaveConfig)
        await self.settings_of_providers.save(
            body.provider_type, body.config, activate=body.set_active, trial=body.test_connection
        )
        self.finish_json({"message": "Configuration saved"})


class TestHandler(SpecificationHandler):
    """`/api/admin/sandbox/test`."""

    async def post(self) -> None:
        """Run a small program with a configuration that is not saved."""
        body = self.body(ProviderConfig)
        trial = await self.settings_of_providers.test(body.provider_type, body.config)
        self.finish_json(
            {
                "success": trial.success,
                "message": trial.message,
                "latency_ms": round(trial.latency * 1000, 3),
                "error_code": trial.error.code if trial.error else None,
            }
        )


class ActiveHandler(SpecificationHandler):
    """`/api/admin/sandbox/active`."""

    def put(self) -> None:
        """Activate a provider."""
        self.settings_of_providers.activate(self.body(ActivateProvider).provider)
        self.finish_json({"message": "Active provider updated"})


_PREFIX = r"/api/admin/sandbox"
ROUTES = (
    (_PREFIX + "/providers", ProvidersHandler),
    (_PREFIX + "/config", ConfigHandler),
    (_PREFIX + "/test", TestHandler),
    (_PREFIX + "/active", ActiveHandler),
)
