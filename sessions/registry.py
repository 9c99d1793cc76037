"""Which sessions there are. The only mutable map from `SessionKey` to `Session`; starts each exactly once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from sessions.errors import SessionClosed, SessionExists, SessionNotFound
from sessions.kernelspecs import KernelSpecs
from sessions.models import SessionKey, SessionSpec, StateChange
from sessions.session import Session
from sessions.surroundings import Surroundings
from sessions.tasks import spawn

#: how many ended sessions are remembered, so that who comes back is told that the variables are gone
REMEMBERED = 10_000


class Registry:
    """All sessions of all tenants."""

    def __init__(self, specs: KernelSpecs, defaults: SessionSpec, around: Surroundings) -> None:
        """Begin empty.

        Args:
            specs: the languages there are.
            defaults: how a session is made on first use.
            around: what sessions share.
        """
        self.defaults = defaults
        self._specs = specs
        self._around = around
        self._sessions: dict[SessionKey, Session] = {}
        self._ended: OrderedDict[SessionKey, str] = OrderedDict()
        self._closing = False

    def all(self) -> list[Session]:
        """Every session, oldest first."""
        return list(self._sessions.values())

    def of(self, tenant: str) -> list[Session]:
        """A tenant's sessions, oldest first."""
        return [session for key, session in self._sessions.items() if key.tenant == tenant]

    def language(self, name: str) -> str:
        """The language that a name or alias means.

        Raises:
            InvalidRequest: there is none.
        """
        return self._specs.find(name).name

    def get(self, key: SessionKey) -> Session:
        """One session.

        Raises:
            SessionNotFound: there is none of this key; other tenants' are not told apart from none.
        """
        session = self._sessions.get(key)
        if session is None:
            raise SessionNotFound(f"there is no session {key.name!r}", session=key.name)
        return session

    async def create(self, key: SessionKey, spec: SessionSpec) -> Session:
        """Make a session and start its kernel.

        Raises:
            SessionExists: there is one of this key.
            InvalidRequest: the language is unknown.
            QuotaExceeded: the tenant has as many sessions as it may.
            SessionError: its kernel could not be started; the session is not kept.
        """
        if key in self._sessions:
            raise SessionExists(f"a session {key.name!r} exists already", session=key.name)
        session, started = self._begin(key, spec)
        await asyncio.shield(started)
        return session

    async def obtain(self, key: SessionKey, spec: SessionSpec | None = None) -> Session:
        """The session of this key, made on first use.

        Args:
            key: which.
            spec: how it is to be made; None: with the defaults.

        Raises:
            SessionError: as `create` does.
        """
        if session := self._sessions.get(key):
            session.touch()
            await session.ensure_kernel()
        else:
            session, started = self._begin(key, spec or self.defaults)
            await asyncio.shield(started)
        return session

    def _begin(self, key: SessionKey, spec: SessionSpec) -> tuple[Session, asyncio.Task[None]]:
        if self._closing:
            raise SessionClosed("the gateway is shutting down")
        kernelspec = self._specs.find(spec.language)
        self._around.quotas.admit_session(len(self.of(key.tenant)))
        session = self._sessions[key] = Session(key, spec, kernelspec, self._around)
        if reason := self._ended.get(key):
            session.announce(StateChange.LOST, reason)
        return session, spawn(self._first_start(session), f"first start of {key}")

    async def _first_start(self, session: Session) -> None:
        """A session whose first kernel does not start is not kept, whoever waits for it or has left."""
        try:
            await session.ensure_kernel()
        except BaseException:
            if self._sessions.get(session.key) is session:
                del self._sessions[session.key]
            await session.close()
            raise
        if self._sessions.get(session.key) is session:
            self._ended.pop(session.key, None)

    def end(self, key: SessionKey, reason: str = "the session was ended") -> asyncio.Future[None]:
        """End a session and free all it has. It is out of the registry when this returns.

        Args:
            key: which.
            reason: what a client that comes back later is told.

        Returns:
            what to await until all is freed; who gives up waiting does not stop it.

        Raises:
            SessionNotFound: there is none.
        """
        session = self.get(key)
        del self._sessions[key]
        if session.incarnation:
            self._ended[key] = reason
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        return asyncio.shield(spawn(session.close(reason), f"end {key}"))

    async def close(self) -> None:
        """End all sessions, and take no more."""
        self._closing = True
        await asyncio.gather(*(self.end(key, "the gateway was stopped") for key in list(self._sessions)))
