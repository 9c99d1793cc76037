"""What Prometheus is told. No names of tenants or sessions: who makes sessions must not make time series."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sessions.models import ExecuteRequest, ExecutionResult, SessionKey

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """One gateway's counters, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._executions = Counter(
            "kernel_gateway_executions", "Cells that ended, by how", ["status"], registry=self.registry
        )
        self._duration = Histogram(
            "kernel_gateway_execution_seconds", "Seconds a cell ran", buckets=_SECONDS, registry=self.registry
        )
        self._errors = Counter("kernel_gateway_errors", "Failures, by code", ["code"], registry=self.registry)
        self.sessions = Gauge("kernel_gateway_sessions", "Sessions, by state", ["state"], registry=self.registry)
        self.sandboxes = Gauge("kernel_gateway_sandboxes", "Sandboxes of several sessions", registry=self.registry)
        self.warm = Gauge("kernel_gateway_warm_kernels", "Kernels that wait in the pool", registry=self.registry)
        self.ready = Gauge("kernel_gateway_ready", "1 when kernels can be started", registry=self.registry)

    def execution_ended(self, _key: SessionKey, _request: ExecuteRequest, result: ExecutionResult) -> None:
        """Count one cell."""
        self._executions.labels(result.status.value).inc()
        self._duration.observe(result.duration)
        if result.error is not None:
            self.failed(result.error.code)

    def failed(self, code: str) -> None:
        """Count one failure."""
        self._errors.labels(code).inc()
