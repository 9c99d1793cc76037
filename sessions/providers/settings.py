"""What an admin does with providers: look at them, configure, try and activate them. No secret is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from sessions.errors import ConnectionFailed, InvalidRequest, SessionError, SettingsUnreadable
from sessions.providers.base import Config, ExecutionResult, SandboxProvider, Schema
from sessions.providers.manager import DEFAULT
from sessions.providers.schema import checked, masked, merged
from sessions.providers.store import ProviderStore
from sessions.providers.tenure import Make, initialized
from sessions.tasks import spawn, to_the_end

log = structlog.get_logger()

#: seconds that a trial may take
DEADLINE = 10
#: what a trial prints, by which it is known to have run
PASSED = "TEST_PASSED"
PROGRAM = f"def main():\n    print('{PASSED}')\n    return 'ok'\n"


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of trying a configuration."""

    success: bool
    #: for people
    message: str
    #: seconds, from the provider's setting up to the program's end
    latency: float
    #: None: it did not come that far
    result: ExecutionResult | None = None
    #: None: nothing went wrong but perhaps the program
    error: SessionError | None = None


@dataclass(frozen=True, slots=True)
class Premises:
    """Where the gateway stands."""

    #: others can reach it: programs run in a sandbox, or not at all
    production: bool
    #: whether what listens at a URL is the gateway itself
    is_own: Callable[[str], Awaitable[bool]]


class ProviderSettings:
    """The settings of all providers."""

    def __init__(self, store: ProviderStore, makers: Mapping[str, Make], premises: Premises) -> None:
        """Nothing is read yet.

        Args:
            store: where they are kept.
            makers: the providers there are, by their ids.
            premises: where the gateway stands.
        """
        self._store = store
        self._makers = makers
        self._premises = premises

    # -- look -----------------------------------------------------------------------------------------------

    def all(self) -> list[SandboxProvider]:
        """The providers there are, each not initialised."""
        return [make() for make in self._makers.values()]

    def schema(self, provider: str) -> Schema:
        """The fields of a provider's configuration.

        Raises:
            InvalidRequest: there is no such provider.
        """
        return self._made(provider).get_config_schema()

    @property
    def active(self) -> str:
        """The id of the provider that is used.

        Raises:
            SettingsUnreadable: what stands in the settings is damaged.
        """
        return self._store.active() or DEFAULT

    def configured(self, provider: str) -> bool:
        """Whether a provider can be used as far as its settings go, readable or not."""
        try:
            return self._store.get(provider) is not None or provider == DEFAULT
        except SettingsUnreadable:
            return True

    def shown(self, provider: str) -> dict[str, Any]:
        """A provider's configuration as it may be shown; its defaults when it was never configured.

        Raises:
            InvalidRequest: there is no such provider.
            SettingsUnreadable: its settings are damaged.
        """
        schema = self.schema(provider)
        config = self._store.get(provider)
        if config is None:
            config = {name: field.default for name, field in schema.items() if field.default is not None}
        return masked(schema, config)

    # -- change ---------------------------------------------------------------------------------------------

    async def save(self, provider: str, sent: Mapping[str, object], *, activate: bool, trial: bool = False) -> None:
        """Keep a provider's configuration; the next program already runs with it.

        Args:
            provider: its id.
            sent: as somebody sent it: secrets may stand there as they are shown, which leaves them as they are.
            activate: and use the provider.
            trial: only if it stands a trial.

        Raises:
            InvalidRequest: there is no such provider, or it cannot be used like this; `fields` in the details.
            ConnectionFailed: it failed its trial.
            LedgerUnavailable: it cannot be kept.
        """
        config = await self._accepted(provider, sent)
        if activate:
            self._must_be_a_sandbox(provider)
        if trial and not (tried := await self._try(provider, config)).success:
            raise ConnectionFailed(f"the provider {provider} failed its test: {tried.message}", provider=provider)
        self._store.put(provider, config, self.schema(provider), activate=activate)
        log.info("a provider was configured", provider=provider, activated=activate)

    def activate(self, provider: str) -> None:
        """Use a provider from the next program on.

        Raises:
            InvalidRequest: there is no such provider, it was never configured, or it must not be used here.
            LedgerUnavailable: it cannot be written down.
        """
        self._made(provider)
        if not self.configured(provider):
            raise InvalidRequest(f"the provider {provider} is not configured", field="provider")
        self._must_be_a_sandbox(provider)
        self._store.activate(provider)
        log.info("a provider was activated", provider=provider)

    async def test(self, provider: str, sent: Mapping[str, object]) -> Trial:
        """Run a small program with a configuration, without keeping it.

        Args:
            provider: its id.
            sent: as of `save`.

        Raises:
            InvalidRequest: there is no such provider, or it cannot be used like this; `fields` in the details.
        """
        return await self._try(provider, await self._accepted(provider, sent))

    # -- how ------------------------------------------------------------------------------------------------

    def _made(self, provider: str) -> SandboxProvider:
        if provider not in self._makers:
            raise InvalidRequest(f"there is no provider {provider[:64]!r}", field="provider_type")
        return self._makers[provider]()

    def _must_be_a_sandbox(self, provider: str) -> None:
        if self._premises.production and not self._made(provider).sandboxed:
            raise InvalidRequest(
                f"the provider {provider} is no sandbox: it is used only by a gateway on loopback", field="provider"
            )

    async def _accepted(self, provider: str, sent: Mapping[str, object]) -> dict[str, Any]:
        """A whole, valid configuration from what somebody sent."""
        made = self._made(provider)
        schema = made.get_config_schema()
        try:
            kept = self._store.get(provider) or {}
        except SettingsUnreadable:
            kept = {}  # saving it anew, with its secrets, is how it is mended
        config = checked(schema, merged(schema, kept, sent))
        valid, problem = made.validate_config(config)
        if not valid:
            raise InvalidRequest(problem or "the configuration is not valid", field="config")
        # What other providers ask of a gateway it does by itself, and does not pass on.
        if provider == DEFAULT and (url := config.get("endpoint")) and await self._premises.is_own(url):
            problem = "it leads back to this gateway; leave it empty for the gateway's own kernels"
            raise InvalidRequest(f"endpoint: {problem}", fields=[{"field": "endpoint", "problem": problem}])
        return config

    async def _try(self, provider: str, config: Config) -> Trial:
        loop = asyncio.get_running_loop()
        began = loop.time()
        running = spawn(self._run(provider, config), f"try provider {provider}")
        try:
            await asyncio.wait({running}, timeout=DEADLINE)
        finally:
            running.cancel()  # what it has made it frees in the background, however long that takes
        result: ExecutionResult | None = None
        error: SessionError | None = None
        try:
            result = running.result()
        except asyncio.InvalidStateError:
            error = ConnectionFailed(f"no answer within {DEADLINE} s", provider=provider)
        except SessionError as failure:
            error = failure
        success = result is not None and result.exit_code == 0 and PASSED in result.stdout
        message = error.message if error else "the test program ran" if success else "the test program failed"
        return Trial(success, message, loop.time() - began, result, error)

    async def _run(self, provider: str, config: Config) -> ExecutionResult:
        made = await initialized(provider, self._makers[provider], config)
        try:
            instance = await made.create_instance("python", tenant="admin")
            try:
                return await made.execute_code(instance.instance_id, PROGRAM, "python", DEADLINE, {})
            finally:
                await to_the_end(spawn(made.destroy_instance(instance.instance_id), "destroy what was tried"))
        finally:
            await to_the_end(spawn(made.close(), "close what was tried"))
