"""Executions that are no cells, for example shell commands. They are admitted, audited and counted like cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sessions.model.errors import SessionError
from sessions.model.values import ExecuteRequest, ExecutionEnd, SessionKey, Status
from sessions.session.services import SessionServices


class Account:
    """How an execution that is no cell ended."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        #: None means that the execution was never begun
        self.end: ExecutionEnd | None = None

    def ends(
        self, status: Status, error: SessionError | None = None, *, output_bytes: int = 0, truncated: bool = False
    ) -> None:
        """Set how the execution ended. The gateway measures its time, because it trusts no sandbox and no provider.

        Args:
            status: how the execution ended.
            error: why it did not run to its own end. None means that it did.
            output_bytes: bytes of its output.
            truncated: whether some output was left out.
        """
        self.end = ExecutionEnd(
            status=status,
            duration=self._clock() - self._began,
            truncated=truncated,
            error=error,
            output_bytes=output_bytes,
        )


@asynccontextmanager
async def accounted(
    services: SessionServices, key: SessionKey, language: str, request: ExecuteRequest, *not_begun: type[Exception]
) -> AsyncIterator[Account]:
    """Run the body as an execution of a tenant, when its turn comes. The body calls `Account.ends` at its end.

    If the body raises an error instead, the execution has died (`SessionError`) or was interrupted (any other error).

    Args:
        services: quotas and journal.
        key: tenant, and name of the session or sandbox in the audit.
        language: language in the audit.
        request: the code and its timeout.
        not_begun: errors by which the body says that the execution was never begun.

    Raises:
        QuotaExceeded: when the tenant has too many executions under way, or has used up its quota.
        AuditUnavailable: when the audit cannot record the execution, so it must not run.
        PolicyViolation: when the code policy forbids the execution.
    """
    async with services.quotas.execution(key.tenant):
        execution_id = services.journal.begins(key, language, request)
        account = Account()
        try:
            yield account
        except not_begun:
            raise
        except SessionError as failure:
            account.ends(Status.DIED, failure)
            raise
        except BaseException:
            if account.end is None:
                account.ends(Status.INTERRUPTED)
            raise
        finally:
            services.journal.ended(key, execution_id, request, account.end)
