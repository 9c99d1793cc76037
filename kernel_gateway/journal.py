"""The journal of all executions of every dialect: it audits, counts and charges them, and knows which are running.

The journal also enforces the code policy, so no dialect can bypass it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from kernel_gateway.observe import logs
from kernel_gateway.observe.metrics import Metrics
from sessions import policy
from sessions.model.errors import AuditUnavailable, PolicyViolation, ShuttingDown
from sessions.model.values import Asker, ExecuteRequest, ExecutionEnd, SessionKey
from sessions.store.audit import Audit
from sessions.store.records import REFUSED, CallBegin, CallEnd, End
from sessions.tenants.audit_disk import COST, FLOOR, AuditDisk
from sessions.tenants.quotas import Quotas
from sessions.tools.servers import Caller


class Journal:
    """The journal of all sessions; see `sessions.session.services.CellJournal`."""

    def __init__(self, audit: Audit, quotas: Quotas, metrics: Metrics, code_policy: str, disk: AuditDisk) -> None:
        """Create a journal without running cells.

        Args:
            audit: records each cell.
            quotas: charges tenants.
            metrics: counts cells.
            code_policy: name of the code policy; one of `sessions.policy.PROFILES`.
            disk: divides the rest of a nearly full audit disk among tenants.
        """
        self._audit = audit
        self._quotas = quotas
        self._metrics = metrics
        self._code_policy = code_policy
        self._disk = disk
        #: who asked for it, by the id of each running execution
        self._running: dict[str, Asker] = {}
        self._closed = False
        self._idle = asyncio.Event()

    def begins(self, key: SessionKey, language: str, request: ExecuteRequest) -> str:
        """Record that a cell is about to run, and return the id of the execution.

        Raises:
            AuditUnavailable: when the audit cannot record the cell, so it must not run.
            PolicyViolation: when the code policy forbids the cell.
            QuotaExceeded: when the audit's disk is nearly full, and the tenant has written its share of what is left.
            ShuttingDown: when the gateway is being stopped.
        """
        if self._closed:
            raise ShuttingDown
        try:
            self._disk.admit(key.tenant, self._audit.room())
            asker = logs.asker()
            execution = self._audit.begin(key, language, request.client_code, asker)
        except AuditUnavailable:
            self._metrics.audit_failed()
            raise
        self._disk.add(key.tenant)
        try:
            policy.enforce(self._code_policy, language, request)
        except PolicyViolation as violation:
            self._audit.end(execution, End(outcome=REFUSED, error=violation.code))
            self._metrics.policy_refused()
            logs.execution_refused(key, execution, violation)
            raise
        self._running[execution] = asker  # its end may be reported in the context of another request
        return execution

    def ended(self, key: SessionKey, execution: str, request: ExecuteRequest, end: ExecutionEnd | None) -> None:
        """Record the end of an execution. `end` is None when the code was never sent."""
        self._audit.end(execution, End.of(end))
        asked_by = self._forget(execution)
        if end is not None:
            self._quotas.charge_execution(key.tenant, end.duration, end.output_bytes)
            self._metrics.execution_ended(end)
            logs.execution_ended(key, execution, request, end, asked_by)

    def call_begins(self, caller: Caller, server: str, tool: str, argument_bytes: int) -> str:
        """Record that a cell is about to call a tool of an operator's server, and return the call's id.

        Raises:
            AuditUnavailable: when the audit cannot record the call, so it must not be made.
            QuotaExceeded: when the audit's disk is nearly full, and the tenant has written its share of what is left.
        """
        key = caller.key
        self._disk.admit(key.tenant, self._audit.room())
        call = self._audit.begin_call(
            CallBegin(
                tenant=key.tenant,
                session=key.name,
                caller=caller.execution,
                server=server,
                tool=tool,
                argument_bytes=argument_bytes,
            )
        )
        self._disk.add(key.tenant)
        return call

    def call_ended(self, call: str, server: str, end: CallEnd) -> None:
        """Record the end of a call."""
        self._audit.end(call, end)
        self._metrics.tool_call_ended(server, end.outcome, end.duration_ms / 1000)

    def left(self, execution: str) -> None:
        """Forget an execution that goes on when the gateway ends. The next gateway records its end as `unknown`."""
        self._forget(execution)

    def _forget(self, execution: str) -> Asker:
        """Count an execution as running no more, and return who asked for it."""
        asked_by = self._running.pop(execution)
        if not self._running:
            self._idle.set()
        return asked_by

    def charge_earlier_executions(self, window: float) -> None:
        """Charge tenants for executions of earlier gateways, which the audit has recorded.

        Otherwise each start would give a tenant a new allowance, and a new share of a nearly full audit disk. The
        audit does not record when the disk became nearly full, so the newest records count as written since then.

        Args:
            window: executions that ended in the last `window` seconds are charged.

        Raises:
            AuditUnavailable: when the free space of the disk cannot be read.
        """
        if (lacking := FLOOR - self._audit.room()) > 0:
            for tenant, executions in self._audit.newest(lacking // COST).items():
                self._disk.add(tenant, executions)
        now = time.time()
        for at, begin, end in self._audit.ended_since(now - window):
            seconds = (end.duration_ms or 0.0) / 1000
            self._quotas.charge_execution(begin.tenant, seconds, end.output_bytes or 0, ago=max(0.0, now - at))

    def close(self) -> None:
        """Refuse all cells from now on."""
        self._closed = True

    async def wait_until_idle(self, seconds: float) -> int:
        """Wait until no cell runs. Call `close` first, so that no new cell begins.

        Args:
            seconds: maximum time to wait.

        Returns:
            the number of cells that still run.
        """
        if self._running:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
        return len(self._running)
