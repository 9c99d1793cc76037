"""Runs programs: each in a fresh kernel, from the pool when one waits, that is thrown away when it has ended.

A program is a cell of a session like any other, so admission, quotas, audit and deadline are those of a session. The
session has a name of chance, and nobody comes back for it. What the cell does with the program stands in the
language's own folder (`kernel_image/kernelspecs/python/programs.py`, `javascript/run.js`).
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace

from sessions.artifacts import collect
from sessions.errors import InvalidRequest, KernelDied, SessionError, SessionNotFound
from sessions.kernelspecs import RUN_MIME, KernelSpecs
from sessions.models import ExecuteRequest, SessionKey, SessionSpec
from sessions.oneshot import Ending, Outcome, Program
from sessions.outcomes import outcome_of
from sessions.registry import Registry
from sessions.session import Session


class OneShot:
    """Runs programs in kernels of a registry's sessions; a `Runner`."""

    def __init__(self, registry: Registry, specs: KernelSpecs, timeout: float) -> None:
        """Set the rules.

        Args:
            registry: where their sessions are.
            specs: the languages there are.
            timeout: seconds that a program may run when it names none.
        """
        self._registry = registry
        self._specs = specs
        self._timeout = timeout

    async def run(self, tenant: str, program: Program) -> Outcome:
        """Run one to its end. Who is cancelled here ends it.

        A program with a memory limit of its own starts cold: limits are fixed when a kernel's container is made.

        Raises:
            InvalidRequest: its language, a limit, its code or its arguments are not valid.
            QuotaExceeded: the tenant has as many sessions or executions as it may, or has used up what it may.
            SessionError: it was not begun, as of `Registry.create` and `Session.execute`.
        """
        request, spec = self._request(program), self._spec(program)
        key = SessionKey(tenant, f"run-{secrets.token_hex(8)}")
        try:
            session = await self._registry.create(key, spec)
            return await self._outcome(session, request)
        finally:
            # The answer does not wait for that. It may have ended already, by who looks after idle ones.
            with suppress(SessionNotFound):
                self._registry.end(key, "the program has ended")

    def _request(self, program: Program) -> ExecuteRequest:
        defaults = self._registry.defaults
        timeout = self._timeout if program.timeout is None else program.timeout
        if not 0 < timeout <= defaults.max_execute_timeout:
            most = f"{defaults.max_execute_timeout:g} s"
            raise InvalidRequest(f"timeout must be above 0 and at most {most}", field="timeout")
        language = self._specs.find(program.language)
        return ExecuteRequest(
            code=language.whole(program.code, program.arguments, defaults.limits.output),
            timeout=timeout,
            store_history=False,
            stdin=(),
            arguments=program.arguments,
            source=program.code,
            answer_mime=RUN_MIME,
        )

    def _spec(self, program: Program) -> SessionSpec:
        defaults = self._registry.defaults
        limits = (
            defaults.limits
            if program.memory is None
            else defaults.limits.narrowed({"memory": min(program.memory, defaults.limits.memory)})
        )
        return replace(defaults, language=program.language, limits=limits, throwaway=True)

    async def _outcome(self, session: Session, request: ExecuteRequest) -> Outcome:
        async with session.execute(request) as execution:
            try:
                result = await execution.result()
            except BaseException:
                # Nobody waits for it any more: to interrupt it first would only take its time.
                with suppress(SessionNotFound):
                    self._registry.end(session.key, "nobody waits for the program any more")
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
