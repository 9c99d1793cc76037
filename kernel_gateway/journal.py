"""Told of every cell, whichever way it came: writes it down, counts it, charges it, knows when none is under way.

What the code policy forbids it stops here, so that no way leads past it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from kernel_gateway import logs
from kernel_gateway.metrics import Metrics
from sessions import policy
from sessions.audit import Audit
from sessions.errors import AuditUnavailable, PolicyViolation, ShuttingDown
from sessions.models import ExecuteRequest, ExecutionResult, SessionKey
from sessions.quotas import Quotas
from sessions.records import REFUSED, End


class Journal:
    """The witness of all sessions; see `sessions.surroundings.Witness`."""

    def __init__(self, audit: Audit, quotas: Quotas, metrics: Metrics, code_policy: str) -> None:
        """Begin with nothing under way.

        Args:
            audit: where each cell is written down.
            quotas: what tenants have used.
            metrics: counts.
            code_policy: what may run; one of `sessions.policy.PROFILES`.
        """
        self._audit = audit
        self._quotas = quotas
        self._metrics = metrics
        self._code_policy = code_policy
        #: the cells under way, and the request that each belongs to; None: it came another way
        self._under_way: dict[str, str | None] = {}
        self._closed = False
        self._quiet = asyncio.Event()

    def begins(self, key: SessionKey, language: str, request: ExecuteRequest) -> str:
        """A cell is about to run.

        Raises:
            AuditUnavailable: it must not, because that cannot be written down.
            PolicyViolation: it may not.
            ShuttingDown: it must not any more.
        """
        if self._closed:
            raise ShuttingDown
        try:
            execution = self._audit.begin(key, language, request.written)
        except AuditUnavailable:
            self._metrics.audit_failed()
            raise
        try:
            policy.enforce(self._code_policy, language, request)
        except PolicyViolation as violation:
            self._audit.end(execution, End(outcome=REFUSED, error=violation.code))
            self._metrics.policy_refused()
            logs.execution_refused(key, execution, violation)
            raise
        self._under_way[execution] = logs.request_id()  # who tells of its end may do so for another request
        return execution

    def ended(self, key: SessionKey, execution: str, request: ExecuteRequest, result: ExecutionResult | None) -> None:
        """It has ended; without a result: it was never sent."""
        self._audit.end(execution, End.of(result))
        asked_by = self._under_way.pop(execution)
        if not self._under_way:
            self._quiet.set()
        if result is not None:
            self._quotas.charge_execution(key.tenant, result.duration, result.output_bytes)
            self._metrics.execution_ended(result)
            logs.execution_ended(key, execution, request, result, asked_by)

    def remember(self, window: float) -> None:
        """What tenants have used counts however often the gateway is started.

        Args:
            window: how many seconds back.
        """
        now = time.time()
        for at, begin, end in self._audit.ended_since(now - window):
            seconds = (end.duration_ms or 0.0) / 1000
            self._quotas.charge_execution(begin.tenant, seconds, end.output_bytes or 0, ago=max(0.0, now - at))

    def close(self) -> None:
        """Let nothing begin any more."""
        self._closed = True

    async def quiet(self, seconds: float) -> int:
        """Wait until nothing is under way, for so long at most; nothing may begin any more.

        Returns:
            how many cells still are.
        """
        if self._under_way:
            self._quiet.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._quiet.wait()
        return len(self._under_way)
