"""Programs that run elsewhere as executions of a tenant: admitted, audited and counted like cells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from sessions.model.errors import ExecutionTimeout, OutOfMemory, SessionError
from sessions.model.values import ExecuteRequest, SessionKey, StateChange, Status
from sessions.model.values import ExecutionResult as CellResult
from sessions.programs.program import Ending, Program
from sessions.providers.base import ExecutionResult
from sessions.providers.outcomes import ending_of
from sessions.session.services import SessionServices

#: status and error of each ending in the audit
_AUDITED: dict[Ending, tuple[Status, SessionError | None]] = {
    Ending.OK: (Status.OK, None),
    Ending.ERROR: (Status.ERROR, None),
    Ending.TIMEOUT: (Status.TIMEOUT, ExecutionTimeout()),
    Ending.OUT_OF_MEMORY: (Status.DIED, OutOfMemory()),
    Ending.DIED: (Status.DIED, None),
}


class NotBegun(Exception):
    """The program was not begun: another provider may begin it."""

    def __init__(self, reason: SessionError) -> None:
        """Keep the reason."""
        super().__init__(reason)
        self.reason = reason


@contextmanager
def raising_not_begun() -> Iterator[None]:
    """Raise `NotBegun` for a failure of the body: a body that fails has begun no program.

    Raises:
        NotBegun: when the body fails.
    """
    try:
        yield
    except SessionError as error:
        raise NotBegun(error) from error


async def accounted(
    services: SessionServices, key: SessionKey, program: Program, run: Callable[[], Awaitable[ExecutionResult]]
) -> ExecutionResult:
    """Run a program when the tenant's quota admits it, and audit it.

    Args:
        services: quotas and audit.
        key: tenant, and name of the session in the audit.
        program: the program.
        run: function that runs the program.

    Raises:
        QuotaExceeded: when the tenant has too many executions in progress, or has used up its quota.
        AuditUnavailable: when the program cannot be audited, so it must not run.
        NotBegun: when `run` raises it.
        SessionError: when `run` raises it.
    """
    request = ExecuteRequest(program.code)
    async with services.quotas.execution(key.tenant):
        execution_id = services.journal.begins(key, program.language, request)
        began = asyncio.get_running_loop().time()
        status: Status | None = Status.INTERRUPTED  # None: the program was not begun
        error: SessionError | None = None
        output = 0
        try:
            result = await run()
            status, error = _AUDITED[ending_of(result)]
            output = len(result.stdout.encode()) + len(result.stderr.encode())
        except NotBegun:
            status = None
            raise
        except SessionError as failure:
            status, error = Status.DIED, failure
            raise
        finally:
            took = asyncio.get_running_loop().time() - began  # the gateway's own measure, not the provider's
            told = None if status is None else _audit_result(status, error, took, output)
            services.journal.ended(key, execution_id, request, told)
    return result


def _audit_result(status: Status, error: SessionError | None, seconds: float, output: int) -> CellResult:
    return CellResult(
        status=status,
        execution_count=None,
        outputs=[],
        duration=seconds,
        state=StateChange.PRESERVED,
        state_reason=None,
        incarnation=0,
        truncated=False,
        error=error,
        output_bytes=output,
    )
