"""What an admin sees of all tenants: their sessions as they are now, what they have and what they may."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal, Self

from pydantic import BaseModel, Field

from kernel_gateway.admins import AdminHandler
from sessions.models import SessionKey
from sessions.quotas import Standing
from sessions.session import Session


class LiveSession(BaseModel):
    """A session of any tenant."""

    tenant: str
    name: str
    language: str
    state: Literal["starting", "idle", "busy", "dead"]
    created_at: datetime
    idle_seconds: float = Field(description="since a client last used it; 0 while one does")
    memory_bytes: int | None = Field(description="that its kernel uses now; null where nobody can tell")
    executions: int = Field(description="cells that it has run since this gateway was started")

    @classmethod
    def of(cls, session: Session) -> Self:
        """From the domain's session."""
        return cls.model_validate(
            {
                "tenant": session.key.tenant,
                "name": session.key.name,
                "language": session.kernelspec.name,
                "state": session.doing.value,
                "created_at": datetime.fromtimestamp(session.created_at, UTC),
                "idle_seconds": round(session.idle_for(), 3),
                "memory_bytes": session.memory(),
                "executions": session.executions,
            }
        )


class LiveSessions(BaseModel):
    """All tenants' sessions."""

    sessions: list[LiveSession]


class Share(BaseModel):
    """How much of something a tenant has or has used, and how much it may."""

    used: float | None = Field(description="null: not counted, because there is no limit")
    max: float | None = Field(description="null: no limit")

    @classmethod
    def of(cls, standing: Standing) -> Self:
        """From the domain's."""
        return cls(used=standing.used, max=standing.max)


class Tenant(BaseModel):
    """A tenant."""

    tenant: str
    sessions: Share
    executions: Share = Field(description="cells and commands under way")
    queued: Share = Field(description="those that wait for their turn")
    execution_seconds: Share = Field(description="used within `window`, as what follows")
    output_bytes: Share
    upload_bytes: Share


class Tenants(BaseModel):
    """The tenants that have a key, or anything under way."""

    tenants: list[Tenant]
    window: float = Field(description="seconds")


class LiveSessionsHandler(AdminHandler):
    """`/v1/admin/sessions`."""

    def get(self) -> None:
        """List them, oldest first."""
        sessions = [LiveSession.of(session) for session in self.gateway.registry.all()]
        self.finish_json(LiveSessions(sessions=sessions).model_dump(mode="json"))


class LiveSessionHandler(AdminHandler):
    """`/v1/admin/sessions/{tenant}/{name}`."""

    async def delete(self, tenant: str, name: str) -> None:
        """End it."""
        await self.gateway.registry.end(SessionKey(tenant, name), "the session was ended by an admin")
        self.set_status(HTTPStatus.NO_CONTENT)


class TenantsHandler(AdminHandler):
    """`/v1/admin/tenants`."""

    def get(self) -> None:
        """List them by name."""
        registry = self.gateway.registry
        names = {session.key.tenant for session in registry.all()} | self.gateway.keys.tenants()
        tenants = [
            Tenant(
                tenant=name,
                **{
                    what: Share.of(standing)
                    for what, standing in self.gateway.quotas.standing(name, len(registry.of(name))).items()
                },
            )
            for name in sorted(names)
        ]
        window = self.gateway.settings.quota_window
        self.finish_json(Tenants(tenants=tenants, window=window).model_dump(mode="json"))
