"""What Prometheus is told of warm kernels and of starts. Languages are named, of which there are a few."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120)


class PoolMetrics:
    """The pool's observer; see `sessions/pool.py`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        language = ["language"]
        self._kernels = Gauge("kernel_gateway_pool_kernels", "Kernels that wait", language, registry=registry)
        self._target = Gauge("kernel_gateway_pool_target", "Kernels that ought to wait", language, registry=registry)
        self._leases = Counter(
            "kernel_gateway_pool_leases",
            "Sessions that could have a kernel from the pool, and whether one waited",
            [*language, "result"],
            registry=registry,
        )
        self._evictions = Counter(
            "kernel_gateway_pool_evictions",
            "Kernels that ended while they waited, or did not answer when handed out",
            language,
            registry=registry,
        )
        self._refill = _seconds("pool_refill", "from the lack of a warm kernel to its first answer", registry)
        self._container = _seconds("container_start", "in which the backend starts a container", registry)
        self._ready = _seconds("kernel_ready", "from a container's start to its kernel's first answer", registry)
        self.waiting = Gauge("kernel_gateway_starts_waiting", "Starts that wait for their turn", registry=registry)

    def shelved(self, language: str, kernels: int, target: int) -> None:
        """So many kernels wait, of so many that ought to."""
        self._kernels.labels(language).set(kernels)
        self._target.labels(language).set(target)

    def leased(self, language: str, *, warm: bool) -> None:
        """Count a session that could have had a warm kernel."""
        self._leases.labels(language, "hit" if warm else "miss").inc()

    def evicted(self, language: str) -> None:
        """Count a kernel that was lost."""
        self._evictions.labels(language).inc()

    def refilled(self, _language: str, seconds: float) -> None:
        """Note how long one took."""
        self._refill.observe(seconds)

    def started(self, container: float, ready: float | None) -> None:
        """Note how long a start took."""
        self._container.observe(container)
        if ready is not None:
            self._ready.observe(ready)


def _seconds(name: str, what: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"kernel_gateway_{name}_seconds", f"Seconds {what}", buckets=_SECONDS, registry=registry)
