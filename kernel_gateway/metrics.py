"""What Prometheus is told. No names of tenants or sessions: who makes sessions must not make time series.

Every label takes its values from a closed set, whatever clients send; a test holds that.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from kernel_gateway.pool_metrics import PoolMetrics
from sessions.errors import SessionError
from sessions.models import ExecutionResult
from sessions.states import State

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """One gateway's counters, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._executions = Counter(
            "kernel_gateway_executions", "Cells that ended, by how", ["status"], registry=registry
        )
        self._duration = Histogram(
            "kernel_gateway_execution_seconds", "Seconds a cell ran", buckets=_SECONDS, registry=registry
        )
        self._errors = Counter("kernel_gateway_errors", "Failures, by code", ["code"], registry=registry)
        self._requests = Counter(
            "kernel_gateway_http_requests",
            "HTTP requests that were answered; none: of no dialect",
            ["dialect", "method", "status"],
            registry=registry,
        )
        self._request_duration = Histogram(
            "kernel_gateway_http_request_seconds",
            "Seconds from a request's first byte to the end of its answer; of a WebSocket, to its upgrade",
            ["dialect"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._audit_failures = Counter(
            "kernel_gateway_audit_failures", "Cells not run because that could not be written down", registry=registry
        )
        self._refused = Counter(
            "kernel_gateway_policy_refusals", "Cells not run because the code policy forbids them", registry=registry
        )
        self._lag = Histogram(
            "kernel_gateway_loop_lag_seconds",
            "Seconds by which the event loop was late",
            buckets=_LAG_SECONDS,
            registry=registry,
        )
        self._sessions = Gauge("kernel_gateway_sessions", "Sessions, by state", ["state"], registry=registry)
        self.sandboxes = Gauge("kernel_gateway_sandboxes", "Sandboxes of several sessions", registry=registry)
        self.warm = Gauge("kernel_gateway_warm_kernels", "Kernels that wait in the pool", registry=registry)
        self._running = Gauge("kernel_gateway_executions_running", "Sessions in which a cell runs", registry=registry)
        self._waiting = Gauge("kernel_gateway_executions_waiting", "Cells that wait for their turn", registry=registry)
        self._ready = Gauge("kernel_gateway_ready", "1 when kernels can be started", registry=registry)
        self._trouble = Gauge(
            "kernel_gateway_trouble", "1: why no kernels can be started, by code", ["code"], registry=registry
        )
        self.pool = PoolMetrics(registry)

    # -- what happens -----------------------------------------------------------------------------------------

    def execution_ended(self, result: ExecutionResult) -> None:
        """Count one cell."""
        self._executions.labels(result.status.value).inc()
        self._duration.observe(result.duration)
        if result.error is not None:
            self.failed(result.error.code)

    def failed(self, code: str) -> None:
        """Count one failure."""
        self._errors.labels(code).inc()

    def request_ended(self, dialect: str, method: str | None, status: int, seconds: float) -> None:
        """Count one HTTP request."""
        self._requests.labels(dialect, method if method in _METHODS else "other", f"{status // 100}xx").inc()
        self._request_duration.labels(dialect).observe(seconds)

    def audit_failed(self) -> None:
        """Count one cell that was not run, because that could not be written down."""
        self._audit_failures.inc()

    def policy_refused(self) -> None:
        """Count one cell that was not run, because the code policy forbids it."""
        self._refused.inc()

    def loop_was_late(self, seconds: float) -> None:
        """Note one beat of the event loop."""
        self._lag.observe(seconds)

    # -- what there is ----------------------------------------------------------------------------------------

    def sessions_are(self, states: Iterable[State], executions: int) -> None:
        """Note the sessions.

        Args:
            states: of each.
            executions: under way in them, running or waiting for their turn.
        """
        by_state = Count(states)
        for state in State:
            self._sessions.labels(state.value).set(by_state[state])
        running = by_state[State.BUSY]
        self._running.set(running)
        self._waiting.set(max(executions - running, 0))

    def trouble_is(self, trouble: SessionError | None) -> None:
        """Note why kernels cannot be started; None: they can."""
        self._ready.set(trouble is None)
        self._trouble.clear()
        if trouble is not None:
            self._trouble.labels(trouble.code).set(1)
