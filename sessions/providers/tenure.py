"""A provider from when it is set to the end of its last run, and which one the settings name now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from sessions.errors import ConnectionFailed, NotInitialized, SessionError
from sessions.providers.base import Config, SandboxProvider
from sessions.providers.schema import checked
from sessions.providers.store import ProviderStore
from sessions.tasks import spawn, to_the_end

log = structlog.get_logger()

#: seconds for which a provider that could not be set up is not tried again, unless the settings change
PAUSE = 2.0
#: seconds that the last runs are waited for in the end
PATIENCE = 10.0

#: makes a provider that is not initialised yet
Make = Callable[[], SandboxProvider]
Version = tuple[int, int]


@dataclass(slots=True, eq=False)
class Tenure:
    """A provider in use."""

    name: str
    provider: SandboxProvider
    #: None: it was set by hand
    config: Config | None
    runs: int = 0
    #: no run is under way
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Begin without runs."""
        self.idle.set()


async def initialized(name: str, make: Make, config: Config) -> SandboxProvider:
    """A provider that can be used. Whoever gets it has to close it.

    Raises:
        InvalidRequest: the configuration is not valid.
        ConnectionFailed: it says that it cannot be used now.
        SessionError: it could not be set up.
    """
    provider = make()
    ready = False
    try:
        ready = await provider.initialize(checked(provider.get_config_schema(), config))
    finally:
        if not ready:
            await to_the_end(spawn(provider.close(), f"close provider {name}"))
    if not ready:
        raise ConnectionFailed(f"the provider {name} cannot be reached", provider=name)
    return provider


class Post:
    """Held by one provider at a time: the one that the settings name. A run goes on with the one it began with."""

    def __init__(self, store: ProviderStore, makers: Mapping[str, Make], name: Callable[[], str]) -> None:
        """Nobody holds it before it is first needed.

        Args:
            store: how providers are configured.
            makers: by their ids, which ones there are.
            name: who is to hold it now.
        """
        self._store = store
        self._makers = makers
        self._name = name
        self._holder: Tenure | None = None
        self._seen: Version | None = None
        self._failed: tuple[Version, SessionError, float] | None = None
        self._changing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def holder(self) -> Tenure | None:
        """Who holds it, as far as the settings have not changed since; None: that is not known yet."""
        return self._holder if self._seen == self._store.version else None

    def give(self, name: str, provider: SandboxProvider) -> None:
        """Let a provider hold it until the settings change."""
        self._change(Tenure(name, provider, None), self._store.version)

    async def take(self) -> Tenure:
        """The holder; it is not closed before it is released.

        Raises:
            SessionError: whoever is to hold it cannot.
        """
        tenure = self.holder or await self._follow()
        tenure.runs += 1
        tenure.idle.clear()
        return tenure

    def release(self, tenure: Tenure) -> None:
        """A run with it has ended."""
        tenure.runs -= 1
        if not tenure.runs:
            tenure.idle.set()

    async def close(self) -> None:
        """Nobody holds it any more; wait until all that is left is closed, but not for ever."""
        self._change(None, None)
        if self._closing:
            await asyncio.wait(self._closing, timeout=PATIENCE)

    async def _follow(self) -> Tenure:
        """Let the one hold it that the settings name."""
        async with self._changing:
            if tenure := self.holder:
                return tenure
            version, now = self._store.version, asyncio.get_running_loop().time()
            if self._failed is not None and self._failed[0] == version and now < self._failed[2]:
                raise self._failed[1].with_traceback(None)
            try:
                tenure = await self._named()
            except SessionError as error:
                self._failed = version, error, now + PAUSE
                self._change(None, None)
                raise
            self._change(tenure, version)
            return tenure

    async def _named(self) -> Tenure:
        name = self._name()
        config = self._store.get(name) or {}
        holder = self._holder
        if holder is not None and (holder.name, holder.config) == (name, config):
            return holder
        if name not in self._makers:
            raise NotInitialized(f"there is no provider {name!r} that may be used here", provider=name)
        provider = await initialized(name, self._makers[name], config)
        log.info("a provider is in use", provider=name)
        return Tenure(name, provider, config)

    def _change(self, tenure: Tenure | None, version: Version | None) -> None:
        before, self._holder, self._seen = self._holder, tenure, version
        if before is not None and before is not tenure:
            closing = spawn(_see_off(before), f"close provider {before.name}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _see_off(tenure: Tenure) -> None:
    """Close a provider that nobody takes any more, when its last run has ended."""
    await tenure.idle.wait()
    await tenure.provider.close()
