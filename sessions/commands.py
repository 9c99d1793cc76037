"""Shell commands as executions of a tenant: admitted, audited, run and counted like cells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sessions.errors import (
    ExecutionTimeout,
    FileNotFound,
    InvalidRequest,
    QuotaExceeded,
    SessionClosed,
    SessionError,
)
from sessions.guest.processes import ProcessResult
from sessions.models import ExecuteRequest, ExecutionResult, SessionKey, StateChange, Status
from sessions.services import SessionServices

#: value in place of their language
SHELL = "shell"


async def run_command(
    services: SessionServices, key: SessionKey, request: ExecuteRequest, run: Callable[[], Awaitable[ProcessResult]]
) -> ProcessResult:
    """Run a command to its end when its turn comes. Cancelling the call ends the command.

    Args:
        services: quotas and journal.
        key: tenant and name of the sandbox.
        request: the command and its timeout.
        run: runs the command.

    Raises:
        QuotaExceeded: when the tenant has too many executions under way, or has used up its quota.
        AuditUnavailable: when the audit cannot record the command.
        PolicyViolation: when the code policy forbids the command.
        SessionError: as in `run_process`.
    """
    loop = asyncio.get_running_loop()
    async with services.quotas.execution(key.tenant):
        execution_id = services.journal.begins(key, SHELL, request)
        began = loop.time()
        ended: ProcessResult | None = None
        failure: SessionError | None = None
        try:
            ended = await run()
        except SessionError as error:
            failure = error
            raise
        finally:
            took = loop.time() - began  # measured here: the sandbox is not trusted
            services.journal.ended(key, execution_id, request, _result(request, ended, failure, took))
    return ended


def _result(
    request: ExecuteRequest, ended: ProcessResult | None, failure: SessionError | None, took: float
) -> ExecutionResult | None:
    """Return the result of a command in the form of a cell's; None: the command never ran."""
    output = 0
    if isinstance(failure, InvalidRequest | FileNotFound | QuotaExceeded | SessionClosed):
        return None
    if ended is None:
        status = Status.INTERRUPTED if failure is None else Status.DIED
    else:
        output = len(ended.stdout.encode()) + len(ended.stderr.encode())
        status = Status.ERROR if ended.exit_code else Status.OK
        if ended.timed_out:
            status, seconds = Status.TIMEOUT, request.timeout
            failure = ExecutionTimeout(f"the command ran longer than {seconds:g} s", timeout=seconds)
    return ExecutionResult(
        status=status,
        execution_count=None,
        outputs=[],
        duration=took,
        state=StateChange.PRESERVED,
        state_reason=None,
        incarnation=0,
        truncated=ended is not None and ended.truncated,
        error=failure,
        output_bytes=output,
    )
