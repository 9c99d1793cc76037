"""A provider in use, from its setup to the end of its last run, and the provider that the settings name now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from sessions.model.errors import ConnectionFailed, NotInitialized, SessionError
from sessions.model.tasks import shielded, spawn
from sessions.providers.base import Config, SandboxProvider
from sessions.providers.schema import checked
from sessions.providers.store import ProviderStore

log = structlog.get_logger()

#: seconds before a provider that could not be set up is tried again, unless the settings change earlier
PAUSE = 2.0
#: seconds that `close` waits for the last runs
PATIENCE = 10.0

#: makes a provider that is not initialised yet
Make = Callable[[], SandboxProvider]
Version = tuple[int, int]


@dataclass(slots=True, eq=False)
class ActiveProvider:
    """A provider in use."""

    name: str
    provider: SandboxProvider
    #: configuration in the settings. None means that `replace_with` has set the provider.
    config: Config | None
    #: number of runs in progress
    runs: int = 0
    #: set while no run is in progress
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Start without runs."""
        self.idle.set()


async def initialized(name: str, make: Make, config: Config) -> SandboxProvider:
    """Return an initialised provider. The caller must close it.

    Raises:
        InvalidRequest: when the configuration is not valid.
        ConnectionFailed: when the provider reports that it cannot be used now.
        SessionError: when the provider could not be set up.
    """
    provider = make()
    ready = False
    try:
        ready = await provider.initialize(checked(provider.get_config_schema(), config))
    finally:
        if not ready:
            await shielded(spawn(provider.close(), f"close provider {name}"))
    if not ready:
        raise ConnectionFailed(f"the provider {name} cannot be reached", provider=name)
    return provider


class ProviderSlot:
    """Holds the provider that the settings name now. A run continues with the provider that it began with."""

    def __init__(self, store: ProviderStore, makers: Mapping[str, Make], name: Callable[[], str]) -> None:
        """Start without a provider; `take` sets up the first one.

        Args:
            store: configurations of the providers.
            makers: makers of all providers by id.
            name: function that returns the id of the provider to use now.
        """
        self._store = store
        self._makers = makers
        self._name = name
        self._current: ActiveProvider | None = None
        self._seen: Version | None = None
        self._failed: tuple[Version, SessionError, float] | None = None
        self._changing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def current(self) -> ActiveProvider | None:
        """The current provider. None means that there is none yet, or that the settings have changed since."""
        return self._current if self._seen == self._store.version else None

    def replace_with(self, name: str, provider: SandboxProvider) -> None:
        """Use this provider until the settings change."""
        self._change(ActiveProvider(name, provider, None), self._store.version)

    async def take(self) -> ActiveProvider:
        """Return the current provider. It stays open until the caller releases it.

        Raises:
            SessionError: when the provider cannot be used.
        """
        current = self.current or await self._switch()
        current.runs += 1
        current.idle.clear()
        return current

    def release(self, current: ActiveProvider) -> None:
        """Record the end of a run with this provider."""
        current.runs -= 1
        if not current.runs:
            current.idle.set()

    async def close(self) -> None:
        """Remove the provider, and wait until all removed providers are closed, for `PATIENCE` seconds at most."""
        self._change(None, None)
        if self._closing:
            await asyncio.wait(self._closing, timeout=PATIENCE)

    async def _switch(self) -> ActiveProvider:
        """Switch to the provider that the settings name."""
        async with self._changing:
            if current := self.current:
                return current
            version, now = self._store.version, asyncio.get_running_loop().time()
            if self._failed is not None and self._failed[0] == version and now < self._failed[2]:
                raise self._failed[1].with_traceback(None)
            try:
                current = await self._named()
            except SessionError as error:
                self._failed = version, error, now + PAUSE
                self._change(None, None)
                raise
            self._change(current, version)
            return current

    async def _named(self) -> ActiveProvider:
        name = self._name()
        config = self._store.get(name) or {}
        present = self._current
        if present is not None and (present.name, present.config) == (name, config):
            return present
        if name not in self._makers:
            raise NotInitialized(f"there is no provider {name!r} that may be used here", provider=name)
        provider = await initialized(name, self._makers[name], config)
        log.info("a provider is in use", provider=name)
        return ActiveProvider(name, provider, config)

    def _change(self, current: ActiveProvider | None, version: Version | None) -> None:
        before, self._current, self._seen = self._current, current, version
        if before is not None and before is not current:
            closing = spawn(_close_when_idle(before), f"close provider {before.name}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _close_when_idle(current: ActiveProvider) -> None:
    """Close a removed provider after its last run has ended."""
    await current.idle.wait()
    await current.provider.close()
