"""Runs programs: each in a fresh kernel, a warm one if the pool has one, which is thrown away after the program.

A program is a cell of a session like any other, so admission, quotas, audit and deadline are those of a session. The
session has a random name, and no client uses it again. The language's own folder defines how the cell runs the program
(`kernel_image/kernelspecs/python/programs.py`, `javascript/run.js`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from kernel_image.protocol import RUN_MIME
from sessions.model.errors import InvalidRequest, KernelDied, SessionError, SessionNotFound
from sessions.model.kernelspecs import KernelSpecs
from sessions.model.values import ExecuteRequest, SessionSpec
from sessions.programs.artifacts import collect
from sessions.programs.outcomes import outcome_of
from sessions.programs.program import Ending, Outcome, Program
from sessions.session.registry import Registry
from sessions.session.session import Session


class ProgramRunner:
    """Runs programs in kernels of a registry's sessions; a `Runner`."""

    def __init__(self, registry: Registry, specs: KernelSpecs, timeout: float) -> None:
        """Make a runner.

        Args:
            registry: registry of the programs' sessions.
            specs: table of the languages.
            timeout: seconds that a program without its own timeout may run.
        """
        self._registry = registry
        self._specs = specs
        self._timeout = timeout

    async def run(self, tenant: str, program: Program) -> Outcome:
        """Run a program to its end. Cancelling the caller ends the program.

        A program with its own memory limit starts cold: limits are fixed when a kernel's container is made.

        Raises:
            InvalidRequest: when the language, a limit, the code or the arguments are not valid.
            QuotaExceeded: when the tenant has the maximum of sessions or executions, or its allowance is used up.
            SessionError: when the program was not begun, as of `Registry.throwaway` and `Session.execute`.
        """
        defaults = self._registry.defaults_of(tenant)
        request, spec = self._request(program, defaults), self._spec(program, defaults)
        async with self._registry.throwaway(tenant, spec) as session:
            return await self._outcome(session, request)

    def _request(self, program: Program, defaults: SessionSpec) -> ExecuteRequest:
        timeout = min(self._timeout, defaults.max_execute_timeout) if program.timeout is None else program.timeout
        if not 0 < timeout <= defaults.max_execute_timeout:
            most = f"{defaults.max_execute_timeout:g} s"
            raise InvalidRequest(f"timeout must be above 0 and at most {most}", field="timeout")
        language = self._specs.find(program.language)
        return ExecuteRequest(
            code=language.program_cell(program.code, program.arguments, defaults.limits.output, script=program.script),
            timeout=timeout,
            store_history=False,
            stdin=(),
            arguments=program.arguments,
            source=program.code,
            answer_mime=RUN_MIME,
        )

    def _spec(self, program: Program, defaults: SessionSpec) -> SessionSpec:
        limits = defaults.limits
        if program.memory is not None:
            enough = max(program.memory, self._specs.find(program.language).min_memory)
            limits = limits.narrowed({"memory": min(enough, limits.memory)})
        return replace(defaults, language=program.language, limits=limits)

    async def _outcome(self, session: Session, request: ExecuteRequest) -> Outcome:
        async with session.execute(request) as execution:
            try:
                result = await execution.result()
            except BaseException:
                # The caller is gone: an interrupt before the end of the session would only cost time.
                with suppress(SessionNotFound):
                    self._registry.end(session.key, "the program was cancelled")
                raise
        outcome, left_something = outcome_of(result)
        if outcome.ending is not Ending.OK or not left_something:
            return outcome
        try:
            if not session.alive:
                raise KernelDied("the kernel ended before the program's artifacts were read")
            artifacts, complete = await collect(session)
        except SessionError as error:
            return replace(outcome, ending=Ending.DIED, exit_code=1, returned=None, error=error)
        return replace(outcome, artifacts=artifacts, truncated=outcome.truncated or not complete)
