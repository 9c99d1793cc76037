"""Programs run where the settings say: which provider that is, and what happens when it cannot be used.

Source: RAGFlow's `ProviderManager` and the `execute_code` of its sandbox client. One provider is active for the whole
installation; here a changed setting counts from the next run on, and nothing has to be restarted.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from sessions.errors import BackendUnavailable, ConnectionFailed, NotInitialized, SessionError, StartFailed
from sessions.models import SessionKey
from sessions.oneshot import Outcome, Program, Runner
from sessions.providers.accounts import NotBegun, accounted, not_begun
from sessions.providers.base import ExecutionResult, SandboxInstance, SandboxProvider
from sessions.providers.outcomes import outcome_of
from sessions.providers.self_managed import within
from sessions.providers.store import ProviderStore
from sessions.providers.tenure import Make, Post, Tenure
from sessions.surroundings import Surroundings
from sessions.tasks import spawn, to_the_end

log = structlog.get_logger()

#: the provider of whoever has chosen none: our kernels, in this process
DEFAULT = "self_managed"
#: what says that a provider cannot be used now, and another might
UNAVAILABLE = (NotInitialized, ConnectionFailed, StartFailed, BackendUnavailable)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a deployment says about providers."""

    #: who takes over what the active one cannot begin; None: nobody
    fallback: str | None = None
    #: who is used whatever the settings say; None: whom they name
    only: str | None = None
    #: others can reach the gateway: what is no sandbox is not there
    production: bool = False
    #: seconds that a program may run which names no time
    timeout: float = 30.0


class ProviderManager:
    """Runs programs with the active provider. A `Runner`."""

    def __init__(
        self,
        store: ProviderStore,
        makers: Mapping[str, Make],
        rules: Rules,
        *,
        own: Runner | None = None,
        around: Surroundings | None = None,
    ) -> None:
        """Nothing is set up before the first program.

        Args:
            store: which provider is active, and how each is configured.
            makers: those there are, by their ids.
            rules: what the deployment says.
            own: runs programs in this process; it admits and writes them down itself. None: nothing does.
            around: who admits and writes down all others; None: nobody.
        """
        self._rules = rules
        self._store = store
        self._own = own
        self._around = around
        usable = {name: make for name, make in makers.items() if not rules.production or make().sandboxed}
        self._active = Post(store, usable, self.get_provider_name)
        self._fallback = Post(store, usable, lambda: rules.fallback or DEFAULT)

    def set_provider(self, name: str, provider: SandboxProvider) -> None:
        """Use an initialised provider until the settings change; it is closed after its last run."""
        self._active.give(name, provider)

    async def get_provider(self) -> SandboxProvider:
        """The active provider.

        Raises:
            SessionError: it cannot be used now.
        """
        tenure = await self._active.take()
        self._active.release(tenure)
        return tenure.provider

    def get_provider_name(self) -> str:
        """The id of the active provider.

        Raises:
            SettingsUnreadable: what stands in the settings is damaged.
        """
        holder = self._active.holder
        return holder.name if holder else self._rules.only or self._store.active() or DEFAULT

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
        """Run a program in an instance of its own, which is destroyed whatever happens.

        Args:
            code: see `SandboxProvider.execute_code`.
            language: of it.
            timeout: seconds; None: as the deployment says.
            arguments: what its `main` is called with.
            tenant: whose.
            session: in which of the tenant's sessions; None: in one of its own.

        Returns:
            what came of it; `fell_back_from` in its metadata when another provider has taken over from that one.

        Raises:
            SessionError: it was not run, or what became of it is not known.
        """
        program = Program(code, language, arguments or {}, timeout)
        result, before = await self._anywhere(lambda tenure: self._execute(tenure, program, tenant, session))
        return result if before is None else replace(result, metadata={**result.metadata, "fell_back_from": before})

    async def run(self, tenant: str, program: Program) -> Outcome:
        """As of `Runner`. A limit of memory holds in this process only: other providers have their own.

        Raises:
            SessionError: it was not begun, or what became of it is not known.
        """

        async def there(tenure: Tenure) -> Outcome:
            if self._own is not None and _here(tenure):
                with not_begun():
                    return await self._own.run(tenant, within(tenure.config or {}, program))
            return outcome_of(await self._execute(tenure, program, tenant, None))

        return (await self._anywhere(there))[0]

    async def close(self) -> None:
        """Free all providers; what still runs ends first."""
        await self._active.close()
        await self._fallback.close()

    # -- where ----------------------------------------------------------------------------------------------

    async def _anywhere(self, what: Callable[[Tenure], Awaitable[T]]) -> tuple[T, str | None]:
        """Do something with the active provider, or with the one that takes over.

        Returns:
            what came of it, and from whom was taken over.
        """
        try:
            return await self._at(self._active, what, healthy=self._rules.fallback is not None), None
        except NotBegun as failure:
            reason = failure.reason
        name = self.get_provider_name()
        if self._rules.fallback in {None, name} or not isinstance(reason, UNAVAILABLE):
            raise reason
        log.warning(
            "a provider cannot be used; another takes over", provider=name, by=self._rules.fallback, why=reason.code
        )
        try:
            return await self._at(self._fallback, what, healthy=False), name
        except NotBegun as failure:
            raise failure.reason from None

    async def _at(self, post: Post, what: Callable[[Tenure], Awaitable[T]], *, healthy: bool) -> T:
        """Do it there.

        Args:
            post: where.
            what: to do.
            healthy: ask the provider first: many notice only with the program that they cannot be reached.
        """
        with not_begun():
            tenure = await post.take()
        try:
            if healthy and not await tenure.provider.health_check():
                reason = BackendUnavailable(f"the provider {tenure.name} does not answer", provider=tenure.name)
                raise NotBegun(reason)
            return await what(tenure)
        finally:
            post.release(tenure)

    # -- how ------------------------------------------------------------------------------------------------

    async def _execute(self, tenure: Tenure, program: Program, tenant: str, session: str | None) -> ExecutionResult:
        async def run() -> ExecutionResult:
            return await self._in_instance(tenure, program, tenant, session)

        if self._around is None or _here(tenure):
            return await run()
        return await accounted(self._around, SessionKey(tenant, session or tenure.name), program, run)

    async def _in_instance(self, tenure: Tenure, program: Program, tenant: str, session: str | None) -> ExecutionResult:
        provider = tenure.provider
        with not_begun():
            instance = await provider.create_instance(program.language, tenant=tenant, session=session)
        timeout = math.ceil(self._rules.timeout if program.timeout is None else program.timeout)
        try:
            # What runs in this process is admitted first, and says for certain when it was not begun.
            with not_begun() if _here(tenure) else nullcontext():
                return await provider.execute_code(
                    instance.instance_id, program.code, program.language, timeout, program.arguments
                )
        finally:
            await to_the_end(spawn(_destroy(provider, instance), f"destroy {instance.instance_id}"))


async def _destroy(provider: SandboxProvider, instance: SandboxInstance) -> None:
    """Free an instance. What came of the program does not depend on it."""
    try:
        gone = await provider.destroy_instance(instance.instance_id)
    except SessionError as error:
        gone = False
        log.warning("an instance could not be destroyed", provider=provider.id, error=error.code)
    if not gone:
        log.warning("something of an instance may be left", provider=provider.id, instance=instance.instance_id)


def _here(tenure: Tenure) -> bool:
    """Whether its programs run in this process."""
    return tenure.name == DEFAULT and tenure.config is not None and not tenure.config.get("endpoint")
