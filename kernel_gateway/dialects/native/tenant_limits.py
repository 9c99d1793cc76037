"""Limits of single tenants: a tenant sees its own, and an admin changes those of all.

Without a limit of its own, a tenant has the gateway's limit.
"""

from __future__ import annotations

from typing import Literal, Self

import structlog
from pydantic import BaseModel, Field

from kernel_gateway.http.admin_handler import AdminHandler
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.setting_types import TenantForm
from sessions.model.tenant_limits import SETTINGS, as_json
from sessions.model.values import valid_name
from sessions.store.tenant_limits import TenantLimitStore

log = structlog.get_logger()

#: value of one limit
Value = int | float | bool | list[str]


class ChangeLimits(TenantForm):
    """The limits to change. null is the gateway's limit again; an absent limit stays."""


class TenantLimit(BaseModel):
    """One limit of a tenant."""

    value: Value = Field(description="what new sessions and cells of the tenant get")
    most: Value = Field(description="the gateway's limit, which is the maximum of `value`")
    source: Literal["gateway", "settings", "admin"] = Field(
        description="gateway: the tenant has the gateway's limit; settings: the gateway's settings fix it for this "
        "tenant; admin: an admin has set it"
    )


class TenantLimits(BaseModel):
    """All limits of a tenant that an admin can change."""

    sessions: TenantLimit
    memory: TenantLimit
    cpus: TenantLimit
    disk: TenantLimit
    timeout: TenantLimit
    images: TenantLimit
    egress: TenantLimit

    @classmethod
    def of(cls, store: TenantLimitStore, tenant: str) -> Self:
        """Describe the limits of a tenant."""
        most, own, fixed = store.most(tenant).named(), store.of(tenant).named(), store.fixed(tenant).named()
        return cls.model_validate(
            {
                name: {
                    "value": as_json(own.get(name, most[name])),
                    "most": as_json(most[name]),
                    "source": "settings" if name in fixed else "admin" if name in own else "gateway",
                }
                for name in SETTINGS
            }
        )


class LimitsHandler(JsonHandler):
    """`/v1/limits`."""

    def get(self) -> None:
        """List the limits of the tenant whose key the request has."""
        self.finish_json(TenantLimits.of(self.gateway.tenant_limits, self.tenant).model_dump(mode="json"))


class TenantLimitsHandler(AdminHandler):
    """`/v1/admin/tenants/{tenant}/limits`."""

    def get(self, tenant: str) -> None:
        """List the limits of a tenant."""
        self._answer(valid_name("tenant", tenant))

    def patch(self, tenant: str) -> None:
        """Change limits. New sessions and cells have them at once; what runs already keeps what it has."""
        changes = self.body(ChangeLimits).given()
        own = self.gateway.tenant_limits.change(tenant, changes)
        log.info("the limits of a tenant were changed", tenant=tenant, by=self.tenant, own=own.as_json())
        self._answer(tenant)

    def _answer(self, tenant: str) -> None:
        self.finish_json(TenantLimits.of(self.gateway.tenant_limits, tenant).model_dump(mode="json"))
