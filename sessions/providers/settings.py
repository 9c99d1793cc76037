"""An admin's operations on providers: show, configure, test and activate them. No secret is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from sessions.model.errors import ConnectionFailed, InvalidRequest, SessionError, SettingsUnreadable
from sessions.model.tasks import shielded, spawn
from sessions.providers.active import Make, initialized
from sessions.providers.base import Config, ExecutionResult, SandboxProvider, Schema
from sessions.providers.manager import DEFAULT
from sessions.providers.schema import checked, masked, merged
from sessions.providers.store import ProviderStore

log = structlog.get_logger()

#: time limit of a trial in seconds
DEADLINE = 10
#: output of the test program, which proves that it has run
PASSED = "TEST_PASSED"
PROGRAM = f"def main():\n    print('{PASSED}')\n    return 'ok'\n"


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of trying a configuration."""

    success: bool
    #: text for people
    message: str
    #: seconds from the provider's setup to the program's end
    latency: float
    #: result of the test program. None means that the trial failed before the program ended.
    result: ExecutionResult | None = None
    #: why the test program has no result. None means that it has one, although the program may have failed.
    error: SessionError | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The gateway's own network position."""

    #: whether other machines can reach the gateway. Then programs run in a sandbox or not at all.
    production: bool
    #: returns True if the server at a URL is this gateway itself
    is_own: Callable[[str], Awaitable[bool]]


class ProviderSettings:
    """The settings of all providers."""

    def __init__(self, store: ProviderStore, makers: Mapping[str, Make], deployment: Deployment) -> None:
        """Keep the parameters; read no settings yet.

        Args:
            store: storage of the settings.
            makers: makers of all providers by id.
            deployment: the gateway's own network position.
        """
        self._store = store
        self._makers = makers
        self._deployment = deployment

    # -- show -----------------------------------------------------------------------------------------------

    def all(self) -> list[SandboxProvider]:
        """Return all providers, not initialised."""
        return [make() for make in self._makers.values()]

    def schema(self, provider: str) -> Schema:
        """Return the fields of a provider's configuration.

        Raises:
            InvalidRequest: when the provider does not exist.
        """
        return self._made(provider).get_config_schema()

    @property
    def active(self) -> str:
        """The id of the active provider.

        Raises:
            SettingsUnreadable: when the setting is damaged.
        """
        return self._store.active() or DEFAULT

    def configured(self, provider: str) -> bool:
        """Return True if a provider has settings, readable or not, or needs none."""
        try:
            return self._store.get(provider) is not None or provider == DEFAULT
        except SettingsUnreadable:
            return True

    def shown(self, provider: str) -> dict[str, Any]:
        """Return a provider's configuration with masked secrets, or its defaults if it was never configured.

        Raises:
            InvalidRequest: when the provider does not exist.
            SettingsUnreadable: when the provider's settings are damaged.
        """
        schema = self.schema(provider)
        config = self._store.get(provider)
        if config is None:
            config = {name: field.default for name, field in schema.items() if field.default is not None}
        return masked(schema, config)

    # -- change ---------------------------------------------------------------------------------------------

    async def save(self, provider: str, sent: Mapping[str, object], *, activate: bool, trial: bool = False) -> None:
        """Save a provider's configuration; the next program already runs with it.

        Args:
            provider: id of the provider.
            sent: configuration as the client sent it. A secret in its masked form keeps the stored value.
            activate: whether to make the provider the active one, too.
            trial: whether to save only if a trial with the configuration succeeds.

        Raises:
            InvalidRequest: when the provider does not exist, or cannot be used like this; `fields` in the details.
            ConnectionFailed: when the trial failed.
            LedgerUnavailable: when the configuration cannot be saved.
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
            InvalidRequest: when the provider does not exist, was never configured, or must not be used here.
            LedgerUnavailable: when the choice cannot be saved.
        """
        self._made(provider)
        if not self.configured(provider):
            raise InvalidRequest(f"the provider {provider} is not configured", field="provider")
        self._must_be_a_sandbox(provider)
        self._store.activate(provider)
        log.info("a provider was activated", provider=provider)

    async def test(self, provider: str, sent: Mapping[str, object]) -> Trial:
        """Run a small program with a configuration, without saving the configuration.

        Args:
            provider: id of the provider.
            sent: configuration, see `save`.

        Raises:
            InvalidRequest: when the provider does not exist, or cannot be used like this; `fields` in the details.
        """
        return await self._try(provider, await self._accepted(provider, sent))

    # -- how ------------------------------------------------------------------------------------------------

    def _made(self, provider: str) -> SandboxProvider:
        if provider not in self._makers:
            raise InvalidRequest(f"there is no provider {provider[:64]!r}", field="provider_type")
        return self._makers[provider]()

    def _must_be_a_sandbox(self, provider: str) -> None:
        if self._deployment.production and not self._made(provider).sandboxed:
            raise InvalidRequest(
                f"the provider {provider} is no sandbox: it is used only by a gateway on loopback", field="provider"
            )

    async def _accepted(self, provider: str, sent: Mapping[str, object]) -> dict[str, Any]:
        """Return a complete, valid configuration from the one that a client sent."""
        made = self._made(provider)
        schema = made.get_config_schema()
        try:
            kept = self._store.get(provider) or {}
        except SettingsUnreadable:
            kept = {}  # the admin repairs damaged settings by saving them again with their secrets
        config = checked(schema, merged(schema, kept, sent))
        valid, problem = made.validate_config(config)
        if not valid:
            raise InvalidRequest(problem or "the configuration is not valid", field="config")
        # A gateway runs the requests of the other providers itself and does not pass them on, so they cannot loop.
        if provider == DEFAULT and (url := config.get("endpoint")) and await self._deployment.is_own(url):
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
            running.cancel()  # the trial frees its resources in the background, however long that takes
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
                await shielded(spawn(made.destroy_instance(instance.instance_id), "destroy the trial's instance"))
        finally:
            await shielded(spawn(made.close(), "close the trial's provider"))
