"""Metrics of what the gateway may run out of: disk, memory, and time until its certificate ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from sessions.store.reserve import room_in, size_of_disk


class RoomMetrics:
    """Shows each amount beside its limit. Each value is read anew whenever the metrics are collected."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"kernel_gateway_{name}", text, registry=registry)

        self._free = gauge("state_disk_free_bytes", "Free bytes of the disk that holds state_dir")
        self._size = gauge("state_disk_bytes", "Bytes of the disk that holds state_dir")
        self._asleep = gauge("sleep_disk_bytes", "Bytes of sleeping sessions and checkpoints")
        self._asleep_limit = gauge("sleep_disk_limit_bytes", "Bytes that these may take: sleep_disk")
        self._promised = gauge("promised_memory_bytes", "Sum of the memory limits of all kernels")
        self._promised_limit = gauge("promised_memory_limit_bytes", "Bytes that may be promised; +Inf: no limit")
        self._certificate = gauge("certificate_seconds", "Seconds until the certificate ends; +Inf: no https")
        self._certificate.set(math.inf)

    def state_disk(self) -> tuple[float, float]:
        """Return the used bytes of the disk of the state directory, and all bytes of it."""
        size = _value(self._size)
        return size - _value(self._free), size

    def sleep_disk(self) -> tuple[float, float]:
        """Return the bytes of sleeping sessions and checkpoints, and their limit."""
        return _value(self._asleep), _value(self._asleep_limit)

    def memory(self) -> tuple[float, float]:
        """Return the bytes of memory that are promised, and their limit; infinite without a limit."""
        return _value(self._promised), _value(self._promised_limit)

    def watch_disk(self, directory: Path) -> None:
        """Show the disk of the state directory. A disk that does not answer counts as full."""
        self._free.set_function(lambda: _asked(room_in, directory))
        self._size.set_function(lambda: _asked(size_of_disk, directory))

    def watch_sleep_disk(self, used: Callable[[], float], limit: int) -> None:
        """Show the disk for sleeping sessions.

        Args:
            used: returns the bytes in use.
            limit: bytes that may be in use.
        """
        self._asleep.set_function(used)
        self._asleep_limit.set(limit)

    def watch_memory(self, promised: Callable[[], float], limit: int) -> None:
        """Show the memory that is promised to kernels.

        Args:
            promised: returns the promised bytes.
            limit: bytes that may be promised. 0 means no limit.
        """
        self._promised.set_function(promised)
        self._promised_limit.set(limit or math.inf)

    def watch_certificate(self, end: Callable[[], datetime]) -> None:
        """Show the time until the certificate ends. `end` returns a time with a time zone."""

        def remaining() -> float:
            return (end() - datetime.now(UTC)).total_seconds()

        self._certificate.set_function(remaining)


def _asked(question: Callable[[Path], int], directory: Path) -> float:
    try:
        return question(directory)
    except OSError:
        return 0.0


def _value(gauge: Gauge) -> float:
    """Return the present value of a gauge without labels."""
    ((sample,),) = (metric.samples for metric in gauge.collect())
    return float(sample.value)
