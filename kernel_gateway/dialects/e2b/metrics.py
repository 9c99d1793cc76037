"""Measures the use of processors, memory and disk by a sandbox."""

from __future__ import annotations

import re
import time
from typing import Any

from kernel_gateway.dialects.e2b.base import ControlHandler
from kernel_gateway.times import rfc3339
from sessions.model.errors import InvalidRequest
from sessions.sandbox.usage import SandboxUse, measure


def figures_model(figures: SandboxUse, at: int) -> dict[str, Any]:
    """Return the figures as clients see them.

    Args:
        figures: figures of the sandbox.
        at: time of the measurement in seconds since 1970.
    """
    return {
        "timestamp": rfc3339(at),
        "timestampUnix": at,
        "cpuCount": max(1, round(figures.processors_max)),
        "cpuUsedPct": round(100 * figures.processors / figures.processors_max, 2),
        "memUsed": figures.memory,
        "memTotal": figures.memory_max,
        "memCache": 0,
        "diskUsed": figures.disk.used,
        "diskTotal": figures.disk.size,
    }


class MetricsHandler(ControlHandler):
    """`/sandboxes/{id}/metrics`."""

    async def get(self, sandbox_id: str) -> None:
        """Measure the sandbox now, and send a list of this measurement; an empty list if the range excludes now."""
        sandbox = self.sandbox(sandbox_id)
        now = int(time.time())
        figures = await measure(sandbox) if self._seconds("start", now) <= now <= self._seconds("end", now) else None
        self.finish_json([] if figures is None else [figures_model(figures, now)])

    def _seconds(self, name: str, absent: int) -> int:
        """Return a bound of the range from the query, or `absent` if the query has none.

        Raises:
            InvalidRequest: when the value is not a number of seconds since 1970.
        """
        if (value := self.raw_argument(name)) is None:
            return absent
        if not re.fullmatch("[0-9]{1,12}", value):
            raise InvalidRequest(f"{name} must be a number of seconds since 1970", field=name)
        return int(value)
