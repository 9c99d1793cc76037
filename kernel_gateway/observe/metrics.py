"""Metrics for Prometheus. No label names a tenant or session, because new sessions must not create new time series.

Clients cannot invent values for any label; a test checks that.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from kernel_gateway.observe.pool_metrics import PoolMetrics
from kernel_gateway.observe.room_metrics import RoomMetrics
from kernel_gateway.wire.connection_metrics import ConnectionMetrics
from sessions.model.errors import SessionError
from sessions.model.values import ExecutionEnd
from sessions.session.states import State

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """The metrics of one gateway, in their own registry."""

    def __init__(self) -> None:
        # Otherwise the time of each first count is a time series of its own. It has no use, and Prometheus stores it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._executions = Counter(
            "kernel_gateway_executions", "Cells that ended, by status", ["status"], registry=registry
        )
        self._duration = Histogram(
            "kernel_gateway_execution_seconds", "Seconds a cell ran", buckets=_SECONDS, registry=registry
        )
        self._errors = Counter("kernel_gateway_errors", "Failures, by code", ["code"], registry=registry)
        self._requests = Counter(
            "kernel_gateway_http_requests",
            "Answered HTTP requests; dialect none: a path of no dialect",
            ["dialect", "method", "status"],
            registry=registry,
        )
        self._request_duration = Histogram(
            "kernel_gateway_http_request_seconds",
            "Seconds from a request's first byte to the end of its answer, or to the upgrade of a WebSocket",
            ["dialect"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._audit_failures = Counter(
            "kernel_gateway_audit_failures", "Cells not run because the audit could not record them", registry=registry
        )
        self._refused = Counter(
            "kernel_gateway_policy_refusals", "Cells not run because the code policy forbids them", registry=registry
        )
        self._tool_calls = Counter(
            "kernel_gateway_tool_calls",
            "Calls of the tools of the operator's servers, by server and outcome",
            ["server", "outcome"],
            registry=registry,
        )
        self._tool_call_duration = Histogram(
            "kernel_gateway_tool_call_seconds",
            "Seconds from such a call to its answer",
            ["server"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._lag = Histogram(
            "kernel_gateway_loop_lag_seconds",
            "Seconds by which the event loop was late",
            buckets=_LAG_SECONDS,
            registry=registry,
        )
        self._sessions = Gauge("kernel_gateway_sessions", "Sessions, by state", ["state"], registry=registry)
        self.tasks = Gauge("kernel_gateway_tasks", "Tasks of the event loop", registry=registry)
        self.sandboxes = Gauge("kernel_gateway_sandboxes", "Sandboxes of several sessions", registry=registry)
        self.warm = Gauge("kernel_gateway_warm_kernels", "Kernels that wait in the pool", registry=registry)
        self.ports = Gauge(
            "kernel_gateway_port_connections", "Open connections to servers that code has started", registry=registry
        )
        self._running = Gauge("kernel_gateway_executions_running", "Sessions in which a cell runs", registry=registry)
        self._waiting = Gauge("kernel_gateway_executions_waiting", "Cells that wait for their turn", registry=registry)
        self._ready = Gauge("kernel_gateway_ready", "1 when kernels can be started", registry=registry)
        self._trouble = Gauge(
            "kernel_gateway_trouble", "1 for the error that blocks kernel starts, by code", ["code"], registry=registry
        )
        self.lines_left_out = Gauge(
            "kernel_gateway_log_lines_left_out", "Lines left out of the log since the start", registry=registry
        )
        self.pool = PoolMetrics(registry)
        self.room = RoomMetrics(registry)
        self.connections = ConnectionMetrics(registry)

    # -- events -----------------------------------------------------------------------------------------------

    def execution_ended(self, end: ExecutionEnd) -> None:
        """Count one cell."""
        self._executions.labels(end.status.value).inc()
        self._duration.observe(end.duration)
        if end.error is not None:
            self.failed(end.error.code)

    def failed(self, code: str) -> None:
        """Count one failure."""
        self._errors.labels(code).inc()

    def request_ended(self, dialect: str, method: str | None, status: int, seconds: float) -> None:
        """Count one HTTP request."""
        self._requests.labels(dialect, method if method in _METHODS else "other", f"{status // 100}xx").inc()
        self._request_duration.labels(dialect).observe(seconds)

    def audit_failed(self) -> None:
        """Count one cell that was not run, because the audit could not record it."""
        self._audit_failures.inc()

    def policy_refused(self) -> None:
        """Count one cell that was not run, because the code policy forbids it."""
        self._refused.inc()

    def tool_call_ended(self, server: str, outcome: str, seconds: float) -> None:
        """Count one call of a tool of an operator's server."""
        self._tool_calls.labels(server, outcome).inc()
        self._tool_call_duration.labels(server).observe(seconds)

    def loop_was_late(self, seconds: float) -> None:
        """Record by how many seconds one beat of the event loop was late."""
        self._lag.observe(seconds)

    # -- current values ---------------------------------------------------------------------------------------

    def set_sessions(self, states: Iterable[State], executions: int) -> None:
        """Set the numbers of sessions and executions.

        Args:
            states: state of each session.
            executions: number of executions in the sessions, running or queued.
        """
        by_state = Count(states)
        for state in State:
            self._sessions.labels(state.value).set(by_state[state])
        running = by_state[State.BUSY]
        self._running.set(running)
        self._waiting.set(max(executions - running, 0))

    def set_trouble(self, trouble: SessionError | None) -> None:
        """Set the error that keeps kernels from starting; None when kernels can be started."""
        self._ready.set(trouble is None)
        self._trouble.clear()
        if trouble is not None:
            self._trouble.labels(trouble.code).set(1)
