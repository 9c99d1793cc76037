"""Shell commands as executions of a tenant: admitted, written down, run and counted as cells are."""

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
from sessions.models import ExecuteRequest, ExecutionResult, SessionKey, StateChange, Status
from sessions.processes import ProcessResult
from sessions.surroundings import Surroundings

#: what stands for their language
SHELL = "shell"


async def run_command(
    around: Surroundings, key: SessionKey, request: ExecuteRequest, run: Callable[[], Awaitable[ProcessResult]]
) -> ProcessResult:
    """Run a command to its end when it is its turn; leaving early ends it.

    Args:
        around: who counts and writes down.
        key: whose, and what it is known by.
        request: the command, and how long it may take.
        run: does it.

    Raises:
        QuotaExceeded: the tenant has too many executions under way, or has used up what it may.
        AuditUnavailable: it must not run.
        PolicyViolation: it may not.
        SessionError: as `run_process` does.
    """
    loop = asyncio.get_running_loop()
    async with around.quotas.execution(key.tenant):
        known_as = around.witness.begins(key, SHELL, request)
        began = loop.time()
        ended: ProcessResult | None = None
        failure: SessionError | None = None
        try:
            ended = await run()
        except SessionError as error:
            failure = error
            raise
        finally:
            took = loop.time() - began  # not what the sandbox says
            around.witness.ended(key, known_as, request, _result(request, ended, failure, took))
    return ended


def _result(
    request: ExecuteRequest, ended: ProcessResult | None, failure: SessionError | None, took: float
) -> ExecutionResult | None:
    """How it ended, as of a cell; None: it never ran."""
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
