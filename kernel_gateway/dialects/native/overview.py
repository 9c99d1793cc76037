"""The admin API's overview: the state of the gateway, and all tenants' live sessions, usage and quotas."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from http import HTTPStatus
from typing import Literal, Self

import structlog
from pydantic import BaseModel, Field

from kernel_gateway.dialects.native.tenant_limits import TenantLimits
from kernel_gateway.http.admin_handler import AdminHandler
from kernel_gateway.times import moment
from sessions.backends.abilities import Ability
from sessions.model.errors import SessionError
from sessions.model.values import SessionKey
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.quotas import QuotaUse

log = structlog.get_logger()


class AbilityInfo(BaseModel):
    """Something that not every machine can do."""

    on: bool
    detail: str = Field(description="why it is on or off")

    @classmethod
    def of(cls, ability: Ability) -> Self:
        """Describe an ability of the backend."""
        return cls(on=ability.on, detail=ability.detail)


class Trouble(BaseModel):
    """The error that keeps kernels from starting."""

    code: str
    message: str
    resolution: str

    @classmethod
    def of(cls, error: SessionError) -> Self:
        """Describe the error."""
        return cls(code=error.code, message=error.message, resolution=error.resolution)


class Room(BaseModel):
    """How much of something is in use, in bytes."""

    used: float
    max: float | None = Field(description="null: no limit")


class FiringAlert(BaseModel):
    """An alert that is due now, as Prometheus finds it with the gateway's rules."""

    name: str
    severity: Literal["critical", "warning"]
    summary: str
    action: str = Field(description="what the operator can do")
    seconds: float = Field(description="seconds since its condition is met")


class Overview(BaseModel):
    """The state of the whole gateway."""

    ready: bool = Field(description="whether kernels can be started")
    trouble: Trouble | None = Field(description="null if the gateway is ready")
    golden_images: AbilityInfo = Field(description="whether new kernels are restored from golden images")
    sleep: AbilityInfo = Field(description="whether idle sessions can sleep")
    state_disk: Room = Field(description="the disk that holds `state_dir`")
    sleep_disk: Room = Field(description="sleeping sessions and checkpoints")
    memory: Room = Field(description="memory that is promised to kernels")
    sessions: dict[str, int] = Field(description="number of sessions, by state")
    sandboxes: int
    warm_kernels: int = Field(description="kernels that wait for a session")
    alerts: list[FiringAlert]


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
                "created_at": moment(session.created_at),
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


class OverviewHandler(AdminHandler):
    """`/v1/admin/overview`."""

    def get(self) -> None:
        """Send the state of the gateway. Its numbers are those of the metrics, on which the alerts depend, too."""
        gateway, room = self.gateway, self.gateway.metrics.room
        trouble, states = gateway.trouble(), Counter(session.state for session in gateway.registry.all())
        overview = Overview(
            ready=trouble is None,
            trouble=None if trouble is None else Trouble.of(trouble),
            golden_images=AbilityInfo.of(gateway.golden_images()),
            sleep=AbilityInfo.of(gateway.sleep()),
            state_disk=_room(*room.state_disk()),
            sleep_disk=_room(*room.sleep_disk()),
            memory=_room(*room.memory()),
            sessions={state.value: states[state] for state in State},
            sandboxes=len(gateway.sandboxes.all()),
            warm_kernels=gateway.warm_kernels(),
            alerts=[
                FiringAlert(
                    name=alert.name,
                    severity=alert.severity,
                    summary=alert.summary,
                    action=alert.action,
                    seconds=round(seconds, 1),
                )
                for alert, seconds in gateway.alerts.firing()
            ],
        )
        self.finish_json(overview.model_dump(mode="json"))


def _room(used: float, limit: float) -> Room:
    return Room(used=used, max=None if math.isinf(limit) else limit)


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
        ended = self.gateway.registry.end(SessionKey(tenant, name), "the session was ended by an admin")
        log.info("a session was ended by an admin", tenant=tenant, session=name, by=self.tenant)
        await ended
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
