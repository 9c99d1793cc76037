"""The number of open WebSockets: of each session, of each tenant and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kernel_gateway.config import Settings
from kernel_gateway.wire.connection_metrics import ConnectionMetrics
from sessions.errors import QuotaExceeded
from sessions.models import SessionKey


class OpenSockets:
    """All open WebSockets, by session and tenant."""

    def __init__(self, settings: Settings, metrics: ConnectionMetrics) -> None:
        self._most = {
            "session": settings.max_sockets_per_session,
            "tenant": settings.max_sockets_per_tenant,
            "total": settings.max_sockets,
        }
        self._metrics = metrics
        self._sessions: Counter[SessionKey] = Counter()
        self._tenants: Counter[str] = Counter()

    def enter(self, key: SessionKey) -> Callable[[], None]:
        """Count a socket of a session.

        Returns:
            the function that must be called when the socket is gone; further calls do nothing.

        Raises:
            QuotaExceeded: when the session, its tenant or the gateway has as many as it may have.
        """
        counts = {
            "session": (self._sessions[key], "the session has"),
            "tenant": (self._tenants[key.tenant], "the tenant has"),
            "total": (self._sessions.total(), "the gateway has"),
        }
        for reason, (count, who) in counts.items():
            if count >= self._most[reason]:
                self._metrics.socket_refused(reason)
                raise QuotaExceeded(f"{who} {count} WebSockets, as many as it may have", max=self._most[reason])
        self._count(key, 1)
        present = [key]

        def leave() -> None:
            if present:
                self._count(present.pop(), -1)

        return leave

    def _count(self, key: SessionKey, change: int) -> None:
        self._sessions[key] += change
        self._tenants[key.tenant] += change
        if not self._sessions[key]:
            del self._sessions[key]
        if not self._tenants[key.tenant]:
            del self._tenants[key.tenant]
        self._metrics.sockets.inc(change)
