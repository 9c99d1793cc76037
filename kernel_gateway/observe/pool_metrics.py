"""Metrics of warm kernels, of kernel starts, and of checkpoints and sleep, for Prometheus.

The language may be a label, because there are only a few languages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sessions.model.stopwatch import Operation, Stage

_SECONDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120)
#: buckets for stages: most of them take hundredths of a second, but waiting for a turn may take minutes
_STAGE_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class PoolMetrics:
    """The observer of the pool (`sessions/kernels/warm.py`) and of sessions (`sessions/session/services.py`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        language = ["language"]
        self._kernels = Gauge("kernel_gateway_pool_kernels", "Warm kernels", language, registry=registry)
        self._target = Gauge("kernel_gateway_pool_target", "Warm kernels wanted", language, registry=registry)
        self._leases = Counter(
            "kernel_gateway_pool_leases",
            "Sessions that could use a warm kernel; hit: one was ready",
            [*language, "result"],
            registry=registry,
        )
        self._evictions = Counter(
            "kernel_gateway_pool_evictions",
            "Warm kernels that ended in the pool, or did not answer when leased",
            language,
            registry=registry,
        )
        self._restores = Counter(
            "kernel_gateway_restores",
            "Kernels that have a golden image; restored: from it; failed: started plainly instead",
            ["result"],
            registry=registry,
        )
        self._sleeps = Counter(
            "kernel_gateway_sleeps",
            "Attempts of idle sessions to sleep; failed: the session is kept awake, and tries again",
            ["result"],
            registry=registry,
        )
        result = ["result"]
        self._checkpoint = _seconds(
            "checkpoint", "that a checkpoint took; failed: the session goes on without", registry, result
        )
        self._wake = _seconds(
            "wake",
            "that a session took to wake; failed: it is tried again, or its variables are lost",
            registry,
            result,
        )
        self._rollbacks = Counter(
            "kernel_gateway_rollbacks",
            "Returns of sessions to a checkpoint; client: asked for; crash: by itself, because a cell ended the kernel",
            ["reason"],
            registry=registry,
        )
        self._refill = _seconds("pool_refill", "from the lack of a warm kernel to its first answer", registry)
        self._container = _seconds("container_start", "that the backend takes to start a container", registry)
        self._ready = _seconds("kernel_ready", "from a container's start to its kernel's first answer", registry)
        self._stages = Histogram(
            "kernel_gateway_stage_seconds",
            "Seconds of each stage until a kernel can be used, by operation",
            ["operation", "stage"],
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.waiting = Gauge("kernel_gateway_starts_waiting", "Starts that wait for their turn", registry=registry)
        self.leftovers = Gauge(
            "kernel_gateway_leftovers", "Containers and volumes that could not be removed yet", registry=registry
        )

        self.strays = Counter(
            "kernel_gateway_strays", "Kernels that belonged to no session, and were ended", registry=registry
        )

    def depth_changed(self, language: str, kernels: int, target: int) -> None:
        """Set the actual and the wanted number of warm kernels."""
        self._kernels.labels(language).set(kernels)
        self._target.labels(language).set(target)

    def leased(self, language: str, *, warm: bool) -> None:
        """Count a session that asked for a warm kernel. `warm` is True if it got one."""
        self._leases.labels(language, "hit" if warm else "miss").inc()

    def evicted(self, language: str) -> None:
        """Count a warm kernel that was lost."""
        self._evictions.labels(language).inc()

    def refilled(self, _language: str, seconds: float) -> None:
        """Record the seconds until the pool had a new warm kernel."""
        self._refill.observe(seconds)

    def restored(self, succeeded: bool) -> None:  # noqa: FBT001 - a callback has no names
        """Count an attempt to restore a kernel."""
        self._restores.labels("restored" if succeeded else "failed").inc()

    def slept(self, succeeded: bool) -> None:  # noqa: FBT001 - as above
        """Count an attempt to put a session to sleep."""
        self._sleeps.labels("asleep" if succeeded else "failed").inc()

    def checkpoint(self, seconds: float, *, succeeded: bool) -> None:
        """Count an attempt to take a checkpoint, and record its seconds."""
        self._checkpoint.labels("taken" if succeeded else "failed").observe(seconds)

    def woken(self, seconds: float, *, succeeded: bool) -> None:
        """Count an attempt to wake a session, and record its seconds."""
        self._wake.labels("woken" if succeeded else "failed").observe(seconds)

    def stages(self, operation: Operation, seconds: Mapping[Stage, float]) -> None:
        """Record the seconds of each stage of an operation that has succeeded."""
        for stage, taken in seconds.items():
            self._stages.labels(operation.value, stage.value).observe(taken)

    def rolled_back(self, *, crash: bool) -> None:
        """Count a return to a checkpoint. `crash` is True if a crashed kernel was the reason, not a client."""
        self._rollbacks.labels("crash" if crash else "client").inc()

    def started(self, container: float, ready: float | None) -> None:
        """Record the seconds of a start.

        Args:
            container: seconds until the container ran.
            ready: seconds from then to the kernel's first answer. None means that the container has no kernel.
        """
        self._container.observe(container)
        if ready is not None:
            self._ready.observe(ready)


def _seconds(name: str, what: str, registry: CollectorRegistry, labels: Sequence[str] = ()) -> Histogram:
    return Histogram(f"kernel_gateway_{name}_seconds", f"Seconds {what}", labels, buckets=_SECONDS, registry=registry)
