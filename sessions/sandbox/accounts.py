"""Executions that are no cells, as shell commands are: admitted, audited and counted like cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sessions.model.errors import SessionError
from sessions.model.values import ExecuteRequest, ExecutionResult, SessionKey, StateChange, Status
from sessions.session.services import SessionServices


@dataclass(slots=True)
class Account:
    """How an execution that is no cell ended. It has neither a kernel nor variables."""

    #: None: the execution was never begun
    _status: Status | None = Status.INTERRUPTED
    _error: SessionError | None = None
    _output_bytes: int = 0
    _truncated: bool = False

    def ends(
        self,
        status: Status | None,
        error: SessionError | None = None,
        *,
        output_bytes: int = 0,
        truncated: bool = False,
    ) -> None:
        """Note the end. An execution whose end is not noted was interrupted.

        Args:
            status: how it ended; None: it was never begun.
            error: why it did not run to its own end.
            output_bytes: bytes of its output.
            truncated: True: some output was left out.
        """
        self._status, self._error = status, error
        self._output_bytes, self._truncated = output_bytes, truncated

    def result(self, seconds: float) -> ExecutionResult | None:
        """Return the result for the audit, in the form of a cell's; None: the execution was never begun."""
        if self._status is None:
            return None
        return ExecutionResult(
            status=self._status,
            execution_count=None,
            outputs=[],
            duration=seconds,
            state=StateChange.PRESERVED,
            state_reason=None,
            incarnation=0,
            truncated=self._truncated,
            error=self._error,
            output_bytes=self._output_bytes,
        )


@asynccontextmanager
async def accounted(
    services: SessionServices, key: SessionKey, language: str, request: ExecuteRequest, *not_begun: type[Exception]
) -> AsyncIterator[Account]:
    """Run the body as an execution of a tenant, when its turn comes. The body tells the account how it ended.

    Args:
        services: quotas and journal.
        key: tenant, and name of the session or sandbox in the audit.
        language: language in the audit.
        request: the code and its timeout.
        not_begun: errors of the body that mean that the execution was never begun.

    Raises:
        QuotaExceeded: when the tenant has too many executions under way, or has used up its quota.
        AuditUnavailable: when the audit cannot record the execution, so it must not run.
        PolicyViolation: when the code policy forbids the execution.
    """
    clock = asyncio.get_running_loop().time
    async with services.quotas.execution(key.tenant):
        execution_id = services.journal.begins(key, language, request)
        began, account = clock(), Account()
        try:
            yield account
        except not_begun:
            account.ends(None)
            raise
        except SessionError as failure:
            account.ends(Status.DIED, failure)
            raise
        finally:
            took = clock() - began  # measured here: neither a sandbox nor a provider is trusted
            services.journal.ended(key, execution_id, request, account.result(took))
