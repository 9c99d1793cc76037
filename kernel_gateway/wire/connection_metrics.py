"""Metrics of connections and WebSockets for Prometheus. The labels have closed sets of values."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ConnectionMetrics:
    """Counts open and refused connections and WebSockets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("kernel_gateway_connections", "Open connections", registry=registry)
        self._refused = Counter(
            "kernel_gateway_connections_refused",
            "Connections that were refused; address: too many of one address, total: too many in all; "
            "tenant: requests that were refused because their tenant had too many connections",
            ["reason"],
            registry=registry,
        )
        self._pauses = Counter(
            "kernel_gateway_accept_pauses", "Times that no file descriptor was left for clients", registry=registry
        )
        self.sockets = Gauge("kernel_gateway_websockets", "Open WebSockets", registry=registry)
        self._sockets_refused = Counter(
            "kernel_gateway_websockets_refused",
            "WebSockets that were refused, or closed because of what they sent; "
            "session, tenant, total: too many; bytes: too much is incomplete or waits; slow: a message took too long; "
            "unread: the tenant's clients have not read too much, and this one most",
            ["reason"],
            registry=registry,
        )

    def refused(self, reason: str) -> None:
        """Count a connection that was refused."""
        self._refused.labels(reason).inc()

    def paused(self) -> None:
        """Count a pause of the listener, because no file descriptor was left."""
        self._pauses.inc()

    def socket_refused(self, reason: str) -> None:
        """Count a WebSocket that was refused, or closed because of what it sent."""
        self._sockets_refused.labels(reason).inc()
