"""Programs run with the provider that the settings name, or with a fallback when that provider cannot be used.

Source: RAGFlow's `ProviderManager` and the `execute_code` of its sandbox client. One provider is active for the whole
installation. Here a changed setting applies from the next run on, without a restart.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    ExecutionTimeout,
    NotInitialized,
    OutOfMemory,
    SessionError,
    StartFailed,
)
from sessions.model.tasks import shielded, spawn
from sessions.model.values import ExecuteRequest, SessionKey, Status
from sessions.programs.program import Ending, Outcome, Program, Runner
from sessions.providers.active import ActiveProvider, Make, ProviderSlot
from sessions.providers.base import ExecutionResult, SandboxInstance, SandboxProvider
from sessions.providers.results import ending_of, outcome_of
from sessions.providers.self_managed import within
from sessions.providers.store import ProviderStore
from sessions.sandbox.accounts import accounted
from sessions.session.services import SessionServices

log = structlog.get_logger()

#: the provider when the settings name none: our kernels, in this process
DEFAULT = "self_managed"
#: errors after which another provider may work: they say that this provider cannot be used now
UNAVAILABLE = (NotInitialized, ConnectionFailed, StartFailed, BackendUnavailable)

#: status and error of each ending in the audit
_AUDITED: dict[Ending, tuple[Status, SessionError | None]] = {
    Ending.OK: (Status.OK, None),
    Ending.ERROR: (Status.ERROR, None),
    Ending.TIMEOUT: (Status.TIMEOUT, ExecutionTimeout()),
    Ending.OUT_OF_MEMORY: (Status.DIED, OutOfMemory()),
    Ending.DIED: (Status.DIED, None),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rules:
    """The deployment's rules for providers."""

    #: id of the provider that runs a program when the active provider cannot begin it. None means no such provider.
    fallback: str | None = None
    #: id of the provider that is used whatever the settings say. None means that the settings decide.
    only: str | None = None
    #: whether other machines can reach the gateway. Then only providers that are a sandbox are available.
    production: bool = False
    #: run time limit in seconds of a program without a timeout
    timeout: float = 30.0


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


class ProviderManager:
    """Runs programs with the active provider. A `Runner`."""

    def __init__(
        self,
        store: ProviderStore,
        makers: Mapping[str, Make],
        rules: Rules,
        *,
        own: Runner | None = None,
        services: SessionServices | None = None,
    ) -> None:
        """Start without a provider; the first program sets one up.

        Args:
            store: active provider and configuration of each.
            makers: makers of all providers by id.
            rules: rules of the deployment.
            own: runner of this process, which admits and audits its programs itself. None means no such runner.
            services: quotas and audit for all other programs. None means that these are neither admitted nor audited.
        """
        self._rules = rules
        self._store = store
        self._own = own
        self._services = services
        usable = {name: make for name, make in makers.items() if not rules.production or make().sandboxed}
        self._active = ProviderSlot(store, usable, self.get_provider_name)
        self._fallback = ProviderSlot(store, usable, lambda: rules.fallback or DEFAULT)

    def set_provider(self, name: str, provider: SandboxProvider) -> None:
        """Use an initialised provider until the settings change. It is closed after its last run."""
        self._active.replace_with(name, provider)

    async def get_provider(self) -> SandboxProvider:
        """Return the active provider.

        Raises:
            SessionError: when the provider cannot be used now.
        """
        active = await self._active.take()
        self._active.release(active)
        return active.provider

    def get_provider_name(self) -> str:
        """Return the id of the active provider.

        Raises:
            SettingsUnreadable: when the setting is damaged.
        """
        current = self._active.current
        return current.name if current else self._rules.only or self._store.active() or DEFAULT

    async def execute_code(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = None,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Mapping[str, Any] | None = None,
        *,
        tenant: str = "local",
        session: str | None = None,
    ) -> ExecutionResult:
        """Run a program in a new instance, which is always destroyed afterwards.

        Args:
            code: source of the program, see `SandboxProvider.execute_code`.
            language: language of the program.
            timeout: run time limit in seconds. None means the deployment's limit.
            arguments: arguments of the program's `main`.
            tenant: owner of the program.
            session: name of the tenant's session. None means that the program gets its own session.

        Returns:
            the result; `fell_back_from` in its metadata is the id of the provider that the fallback replaced.

        Raises:
            SessionError: when the program was not run, or its outcome is not known.
        """
        program = Program(code, language, arguments or {}, timeout)
        result, before = await self._with_fallback(lambda active: self._execute(active, program, tenant, session))
        return result if before is None else replace(result, metadata={**result.metadata, "fell_back_from": before})

    async def run(self, tenant: str, program: Program) -> Outcome:
        """Run a program, see `Runner`. Its memory limit applies in this process only: other providers have their own.

        Raises:
            SessionError: when the program was not begun, or its outcome is not known.
        """

        async def there(active: ActiveProvider) -> Outcome:
            if self._own is not None and _in_this_process(active):
                with raising_not_begun():
                    return await self._own.run(tenant, self._limited(within(active.config or {}, program), tenant))
            return outcome_of(await self._execute(active, program, tenant, None))

        return (await self._with_fallback(there))[0]

    async def close(self) -> None:
        """Close all providers after their last runs."""
        await self._active.close()
        await self._fallback.close()

    # -- where ----------------------------------------------------------------------------------------------

    async def _with_fallback(self, what: Callable[[ActiveProvider], Awaitable[T]]) -> tuple[T, str | None]:
        """Call `what` with the active provider, or with the fallback if the active one cannot begin.

        Returns:
            the result of the call, and the id of the replaced provider or None.
        """
        try:
            return await self._with_slot(self._active, what, healthy=self._rules.fallback is not None), None
        except NotBegun as failure:
            reason = failure.reason
        name = self.get_provider_name()
        if self._rules.fallback in {None, name} or not isinstance(reason, UNAVAILABLE):
            raise reason
        log.warning(
            "a provider cannot be used; another takes over", provider=name, by=self._rules.fallback, why=reason.code
        )
        try:
            return await self._with_slot(self._fallback, what, healthy=False), name
        except NotBegun as failure:
            raise failure.reason from None

    async def _with_slot(
        self, slot: ProviderSlot, what: Callable[[ActiveProvider], Awaitable[T]], *, healthy: bool
    ) -> T:
        """Call `what` with the provider of a slot.

        Args:
            slot: holder of the provider.
            what: function to call.
            healthy: whether to check the provider's health first. Without this check, many providers notice only during
                the program that their service cannot be reached.
        """
        with raising_not_begun():
            active = await slot.take()
        try:
            if healthy and not await active.provider.health_check():
                reason = BackendUnavailable(f"the provider {active.name} does not answer", provider=active.name)
                raise NotBegun(reason)
            return await what(active)
        finally:
            slot.release(active)

    # -- how ------------------------------------------------------------------------------------------------

    async def _execute(
        self, active: ActiveProvider, program: Program, tenant: str, session: str | None
    ) -> ExecutionResult:
        if self._services is None or _in_this_process(active):
            return await self._in_instance(active, program, tenant, session)
        key, request = SessionKey(tenant, session or active.name), ExecuteRequest(program.code)
        async with accounted(self._services, key, program.language, request, NotBegun) as account:
            result = await self._in_instance(active, program, tenant, session)
            output = len(result.stdout.encode()) + len(result.stderr.encode())
            account.ends(*_AUDITED[ending_of(result)], output_bytes=output)
        return result

    async def _in_instance(
        self, active: ActiveProvider, program: Program, tenant: str, session: str | None
    ) -> ExecutionResult:
        provider = active.provider
        with raising_not_begun():
            instance = await provider.create_instance(program.language, tenant=tenant, session=session)
        program = self._limited(program, tenant)
        timeout = math.ceil(self._rules.timeout if program.timeout is None else program.timeout)
        try:
            # A program of this process is admitted first, and its errors say for certain when it was not begun.
            with raising_not_begun() if _in_this_process(active) else nullcontext():
                return await provider.execute_code(
                    instance.instance_id, program.code, program.language, timeout, program.arguments
                )
        finally:
            await shielded(spawn(_destroy(provider, instance), f"destroy {instance.instance_id}"))

    def _limited(self, program: Program, tenant: str) -> Program:
        """Return the program with a timeout that its tenant may have."""
        most = None if self._services is None else self._services.own_limits(tenant).timeout
        if most is None:
            return program
        return replace(program, timeout=min(most, self._rules.timeout if program.timeout is None else program.timeout))


async def _destroy(provider: SandboxProvider, instance: SandboxInstance) -> None:
    """Destroy an instance and log a failure. The program's result does not depend on it."""
    try:
        gone = await provider.destroy_instance(instance.instance_id)
    except SessionError as error:
        gone = False
        log.warning("an instance could not be destroyed", provider=provider.id, error=error.code)
    if not gone:
        log.warning("an instance may not be removed completely", provider=provider.id, instance=instance.instance_id)


def _in_this_process(active: ActiveProvider) -> bool:
    """Return True if the provider's programs run in this process."""
    return active.name == DEFAULT and active.config is not None and not active.config.get("endpoint")
