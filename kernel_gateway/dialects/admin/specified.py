"""The specification's form, `/api/admin/sandbox`. Source: RAGFlow's `sandbox_spec.md`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.admins import AdminHandler
from kernel_gateway.dialects.admin.models import Chosen, Saved, Sent, described, schema_json
from sessions.errors import ConnectionFailed, SessionError, SettingsUnreadable
from sessions.providers.settings import ProviderSettings


class SpecifiedHandler(AdminHandler):
    """What all of them share."""

    @property
    def settings_of_providers(self) -> ProviderSettings:
        """Whom they ask."""
        return self.gateway.provider_settings

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """That the provider that was sent cannot be reached is a fault of what was sent."""
        return HTTPStatus.BAD_REQUEST if isinstance(failure, ConnectionFailed) else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """`error` is a sentence, `details` what is wrong with which field; the rest is ours."""
        return {
            "error": failure.message,
            "error_code": failure.code,
            "resolution": failure.resolution,
            "details": failure.details.get("fields", failure.details),
            "request_id": self.request_id,
        }


class ProvidersHandler(SpecifiedHandler):
    """`/api/admin/sandbox/providers`."""

    def get(self) -> None:
        """List them, with the schemas of their configurations."""
        providers = [
            described(provider) | {"config_schema": schema_json(provider.get_config_schema())}
            for provider in self.settings_of_providers.all()
        ]
        self.finish_json({"data": providers})


class ConfigHandler(SpecifiedHandler):
    """`/api/admin/sandbox/config`."""

    def get(self) -> None:
        """The active provider, and how each is configured; `errors` names those whose settings cannot be read."""
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
        """Keep a configuration."""
        body = self.body(Saved)
        await self.settings_of_providers.save(
            body.provider_type, body.config, activate=body.set_active, trial=body.test_connection
        )
        self.finish_json({"message": "Configuration saved"})


class TestHandler(SpecifiedHandler):
    """`/api/admin/sandbox/test`."""

    async def post(self) -> None:
        """Run a small program with a configuration that is not kept."""
        body = self.body(Sent)
        trial = await self.settings_of_providers.test(body.provider_type, body.config)
        self.finish_json(
            {
                "success": trial.success,
                "message": trial.message,
                "latency_ms": round(trial.latency * 1000, 3),
                "error_code": trial.error.code if trial.error else None,
            }
        )


class ActiveHandler(SpecifiedHandler):
    """`/api/admin/sandbox/active`."""

    def put(self) -> None:
        """Use a provider from now on."""
        self.settings_of_providers.activate(self.body(Chosen).provider)
        self.finish_json({"message": "Active provider updated"})


_PREFIX = r"/api/admin/sandbox"
ROUTES = (
    (_PREFIX + "/providers", ProvidersHandler),
    (_PREFIX + "/config", ConfigHandler),
    (_PREFIX + "/test", TestHandler),
    (_PREFIX + "/active", ActiveHandler),
)
