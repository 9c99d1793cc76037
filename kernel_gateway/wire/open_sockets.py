"""Limits the number of open WebSockets of each session, of each tenant and of the gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kernel_gateway.config import Settings
from kernel_gateway.wire.connection_metrics import ConnectionMetrics
from sessions.model.errors import QuotaExceeded
from sessions.model.values import SessionKey
from sessions.tenants.shares import Shares


class OpenSockets:
    """All open WebSockets, by session and tenant."""

    def __init__(self, settings: Settings, metrics: ConnectionMetrics) -> None:
        self._per_session = settings.max_sockets_per_session
        self._per_tenant = settings.max_sockets_per_tenant
        self._metrics = metrics
        self._sessions: Counter[SessionKey] = Counter()
        self._tenants = Shares(settings.max_sockets, settings.share, least=1)

    def enter(self, key: SessionKey) -> Callable[[], None]:
        """Count a WebSocket of a session.

        Returns:
            a function to call when the WebSocket is closed; further calls do nothing.

        Raises:
            QuotaExceeded: when the session, its tenant or the gateway has reached its limit.
        """
        tenants = self._tenants
        of_tenant = min(self._per_tenant, tenants.share_of(key.tenant))
        counts = {
            "session": ("the session has", self._sessions[key], self._per_session),
            "total": ("the gateway has", tenants.used, tenants.most),
            "tenant": ("the tenant has", tenants.of(key.tenant), of_tenant),
        }
        for reason, (who, count, most) in counts.items():
            if count >= most:
                self._metrics.socket_refused(reason)
                raise QuotaExceeded(f"{who} {count} WebSockets, as many as it may have", max=most)
        self._count(key, 1)
        present = [key]

        def leave() -> None:
            if present:
                self._count(present.pop(), -1)

        return leave

    def _count(self, key: SessionKey, change: int) -> None:
        self._sessions[key] += change
        self._tenants.add(key.tenant, change)
        if not self._sessions[key]:
            del self._sessions[key]
        self._metrics.sockets.inc(change)
