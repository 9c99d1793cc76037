"""Shell commands as executions of a tenant: admitted, audited, run and counted like cells."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from sessions.activity import Activity
from sessions.attached import AttachedCommand, Listener
from sessions.errors import (
    ExecutionTimeout,
    FileNotFound,
    InvalidRequest,
    ProcessNotFound,
    QuotaExceeded,
    SessionClosed,
    SessionError,
)
from sessions.guest.attached import Program
from sessions.guest.processes import ProcessResult, run_process
from sessions.guest.tools import ToolHost
from sessions.models import ExecuteRequest, ExecutionResult, SandboxSpec, SessionKey, StateChange, Status
from sessions.services import SessionServices
from sessions.tasks import spawn

#: attached commands of a sandbox at a time: each takes one of the tools that its container may run
ATTACHED_MAX = 8
#: value in place of their language
SHELL = "shell"


class CommandHost(ToolHost, Protocol):
    """Sandbox whose commands are run."""

    key: SessionKey
    spec: SandboxSpec


class Commands:
    """The shell commands of one sandbox."""

    def __init__(self, host: CommandHost, services: SessionServices, activity: Activity) -> None:
        self._host = host
        self._services = services
        self._activity = activity
        #: attached commands that have not ended, oldest first, and the tasks that run them
        self._attached: dict[AttachedCommand, asyncio.Task[None]] = {}

    async def run(self, command: str, cwd: str, seconds: float) -> ProcessResult:
        """Run a shell command in the sandbox's own container; see `run_command`."""
        with self._activity.use():
            request = ExecuteRequest(command, min(seconds, self._host.spec.max_execute_timeout))
            run = partial(run_process, self._host, command, cwd, self._host.spec.env, request.timeout)
            return await run_command(self._services, self._host.key, request, run)

    def attached(self) -> list[AttachedCommand]:
        """Return the attached commands that run, oldest first."""
        return [command for command in self._attached if command.running]

    def find(self, pid: int) -> AttachedCommand:
        """Return the attached command with this process id.

        Raises:
            ProcessNotFound: when none with this id runs.
        """
        for command in self._attached:
            if command.running and command.pid == pid:
                return command
        raise ProcessNotFound(f"there is no command {pid}")

    async def start(self, program: Program, tag: str | None) -> tuple[AttachedCommand, Listener]:
        """Start a command that runs until its own end, whoever listens; then return it with its first listener.

        It counts as an execution of the tenant, and is ended at its timeout, at the latest when an execution must end.

        Args:
            program: the command.
            tag: the client's own name for it.

        Raises:
            QuotaExceeded: when the sandbox has too many, or as in `run_command`.
            SessionError: as in `run_command`; or the program cannot be started.
        """
        if len(self._attached) >= ATTACHED_MAX:
            raise QuotaExceeded(f"at most {ATTACHED_MAX} commands of a sandbox at a time", max=ATTACHED_MAX)
        command = AttachedCommand(program, tag)
        listener = command.listen()
        work = self._attached[command] = spawn(self._attend(command), f"command of {self._host.key}")
        either: set[asyncio.Future[Any]] = {work, command.begun}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not command.begun.done():
            if work.cancelled():
                raise SessionClosed("the sandbox was ended")
            work.result()
        return command, listener

    async def close(self) -> None:
        """End the attached commands, because the sandbox ends, and wait until they have ended."""
        if works := list(self._attached.values()):
            for work in works:
                work.cancel()
            await asyncio.wait(works)

    async def _attend(self, command: AttachedCommand) -> None:
        spec = self._host.spec
        seconds = min(command.program.timeout or spec.max_execute_timeout, spec.max_execute_timeout)
        request = ExecuteRequest(shlex.join(command.program.argv), seconds)
        try:
            with self._activity.use():
                run = partial(command.run, self._host, spec.env, request.timeout)
                await run_command(self._services, self._host.key, request, run)
        except SessionError as error:
            command.failure = error
            raise
        finally:
            del self._attached[command]
            command.end()


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
        output = len(ended.stdout.encode()) + len(ended.stderr.encode()) + ended.passed_on
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
