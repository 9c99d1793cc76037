"""Per-tenant admission. Pure: it counts, and says no.

One place for every dialect and channel, so that a limit holds whichever way a cell came by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sessions.errors import QuotaExceeded


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at a time."""

    sessions: int = 50
    #: executions running or waiting for their turn
    executions: int = 10


class Quotas:
    """Counts of all tenants."""

    def __init__(self, limits: TenantLimits) -> None:
        self._limits = limits
        self._executions: Counter[str] = Counter()

    def admit_session(self, present: int) -> None:
        """Allow a tenant one more session.

        Args:
            present: how many it has now.

        Raises:
            QuotaExceeded: it has as many as it may.
        """
        if present >= self._limits.sessions:
            raise QuotaExceeded(
                f"at most {self._limits.sessions} sessions at a time", limit="sessions", max=self._limits.sessions
            )

    @contextmanager
    def execution(self, tenant: str) -> Iterator[None]:
        """Count one execution for as long as the context lasts.

        Raises:
            QuotaExceeded: the tenant has as many under way as it may.
        """
        if self._executions[tenant] >= self._limits.executions:
            raise QuotaExceeded(
                f"at most {self._limits.executions} executions at a time",
                limit="executions",
                max=self._limits.executions,
                retry_after=1,
            )
        self._executions[tenant] += 1
        try:
            yield
        finally:
            self._executions[tenant] -= 1
            if not self._executions[tenant]:
                del self._executions[tenant]
