"""The admin API's overview of all tenants: their live sessions, their usage and their quotas."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal, Self

from pydantic import BaseModel, Field

from kernel_gateway.dialects.native.tenant_limits import TenantLimits
from kernel_gateway.http.admin_handler import AdminHandler
from sessions.model.values import SessionKey
from sessions.session.session import Session
from sessions.tenants.quotas import QuotaUse


class LiveSession(BaseModel):
    """A session of any tenant."""

    tenant: str
    name: str
    language: str
    state: Literal["starting", "idle", "busy", "asleep", "dead"]
    created_at: datetime
    idle_seconds: float = Field(description="seconds since a client last used it; 0 during use")
    memory_bytes: int | None = Field(description="bytes that its kernel uses now; null if unknown")
    container: str | None = Field(
        description="id of its kernel's container, or for isolation `process` the name of its directory; "
        "null: it has no kernel"
    )
    executions: int = Field(description="cells that the session has run since this gateway started")

    @classmethod
    def of(cls, session: Session) -> Self:
        """Describe a session."""
        container = session.container
        return cls.model_validate(
            {
                "tenant": session.key.tenant,
                "name": session.key.name,
                "language": session.kernelspec.name,
                "state": session.state.value,
                "created_at": datetime.fromtimestamp(session.created_at, UTC),
                "idle_seconds": round(session.idle_for(), 3),
                "memory_bytes": None if container is None else container.memory(),
                "container": None if container is None else container.id,
                "executions": session.executions,
            }
        )


class LiveSessions(BaseModel):
    """All tenants' sessions."""

    sessions: list[LiveSession]


class Share(BaseModel):
    """A tenant's use of one quota, and its limit."""

    used: float | None = Field(description="null: not counted, because there is no limit")
    max: float | None = Field(description="null: no limit")

    @classmethod
    def of(cls, uses: QuotaUse) -> Self:
        """Describe the use of a quota."""
        return cls(used=uses.used, max=uses.max)


class Tenant(BaseModel):
    """A tenant, its use of each quota, and its limits."""

    tenant: str
    sessions: Share
    executions: Share = Field(description="running cells and commands")
    queued: Share = Field(description="cells and commands that wait in the queue")
    execution_seconds: Share = Field(description="used within `window`, as are the bytes below")
    output_bytes: Share
    upload_bytes: Share
    limits: TenantLimits


class Tenants(BaseModel):
    """The tenants that have a key, a session, or a limit of their own."""

    tenants: list[Tenant]
    window: float = Field(description="seconds")


class LiveSessionsHandler(AdminHandler):
    """`/v1/admin/sessions`."""

    def get(self) -> None:
        """List the sessions, oldest first."""
        sessions = [LiveSession.of(session) for session in self.gateway.registry.all()]
        self.finish_json(LiveSessions(sessions=sessions).model_dump(mode="json"))


class LiveSessionHandler(AdminHandler):
    """`/v1/admin/sessions/{tenant}/{name}`."""

    async def delete(self, tenant: str, name: str) -> None:
        """End the session."""
        await self.gateway.registry.end(SessionKey(tenant, name), "the session was ended by an admin")
        self.set_status(HTTPStatus.NO_CONTENT)


class TenantsHandler(AdminHandler):
    """`/v1/admin/tenants`."""

    def get(self) -> None:
        """List the tenants by name."""
        registry, limits = self.gateway.registry, self.gateway.tenant_limits
        names = {session.key.tenant for session in registry.all()} | self.gateway.keys.tenants() | limits.tenants()
        tenants = [
            Tenant(
                tenant=name,
                limits=TenantLimits.of(limits, name),
                **{
                    what: Share.of(uses)
                    for what, uses in self.gateway.quotas.uses(name, len(registry.taken(name))).items()
                },
            )
            for name in sorted(names)
        ]
        window = self.gateway.settings.quota_window
        self.finish_json(Tenants(tenants=tenants, window=window).model_dump(mode="json"))
