"""Programs that run elsewhere as executions of a tenant: admitted, written down and counted as cells are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from sessions.errors import ExecutionTimeout, OutOfMemory, SessionError
from sessions.models import ExecuteRequest, SessionKey, StateChange, Status
from sessions.models import ExecutionResult as CellResult
from sessions.oneshot import Ending, Program
from sessions.providers.base import ExecutionResult
from sessions.providers.outcomes import ending_of
from sessions.surroundings import Surroundings

#: how the audit calls each ending, and what went wrong then
_TOLD: dict[Ending, tuple[Status, SessionError | None]] = {
    Ending.OK: (Status.OK, None),
    Ending.ERROR: (Status.ERROR, None),
    Ending.TIMEOUT: (Status.TIMEOUT, ExecutionTimeout()),
    Ending.OUT_OF_MEMORY: (Status.DIED, OutOfMemory()),
    Ending.DIED: (Status.DIED, None),
}


class NotBegun(Exception):
    """A program was not begun: another provider may begin it."""

    def __init__(self, reason: SessionError) -> None:
        """Keep why."""
        super().__init__(reason)
        self.reason = reason


@contextmanager
def not_begun() -> Iterator[None]:
    """What fails in here has begun nothing.

    Raises:
        NotBegun: it failed.
    """
    try:
        yield
    except SessionError as error:
        raise NotBegun(error) from error


async def accounted(
    around: Surroundings, key: SessionKey, program: Program, run: Callable[[], Awaitable[ExecutionResult]]
) -> ExecutionResult:
    """Run a program when it is its turn.

    Args:
        around: who counts and writes down.
        key: whose, and what it is known by.
        program: that runs.
        run: does it.

    Raises:
        QuotaExceeded: the tenant has too many executions under way, or has used up what it may.
        AuditUnavailable: it must not run.
        NotBegun: as `run` says.
        SessionError: as `run` does.
    """
    request = ExecuteRequest(program.code)
    async with around.quotas.execution(key.tenant):
        known_as = around.witness.begins(key, program.language, request)
        began = asyncio.get_running_loop().time()
        status: Status | None = Status.INTERRUPTED  # None: it was not begun
        error: SessionError | None = None
        output = 0
        try:
            result = await run()
            status, error = _TOLD[ending_of(result)]
            output = len(result.stdout.encode()) + len(result.stderr.encode())
        except NotBegun:
            status = None
            raise
        except SessionError as failure:
            status, error = Status.DIED, failure
            raise
        finally:
            took = asyncio.get_running_loop().time() - began  # not what the provider says
            told = None if status is None else _told(status, error, took, output)
            around.witness.ended(key, known_as, request, told)
    return result


def _told(status: Status, error: SessionError | None, seconds: float, output: int) -> CellResult:
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
