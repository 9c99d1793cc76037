"""Which sessions there are. The only mutable map from `SessionKey` to `Session`; starts each exactly once."""

from __future__ import annotations

import asyncio

from sessions.errors import InvalidRequest, SessionClosed, SessionExists, SessionNotFound, ShuttingDown
from sessions.kernelspecs import KernelSpecs
from sessions.models import SessionKey, SessionSpec, StateChange
from sessions.session import Session
from sessions.surroundings import Surroundings
from sessions.tasks import spawn, together


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
        self._closing = False
        #: ends that are under way, and of whom; not all of them are waited for by who has asked for them
        self._ending: dict[asyncio.Future[None], Session] = {}

    def restore(self) -> None:
        """Know the sessions that an earlier gateway has left; their kernels are still to be taken over."""
        for record in self._around.ledger.sessions():
            try:
                kernelspec = self._specs.find(record.spec.language)
            except InvalidRequest:
                self._around.ledger.end(record.key, f"there is no language {record.spec.language!r} any more")
                continue
            self._sessions[record.key] = Session(record.key, record.spec, kernelspec, self._around, record)

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
        return await self._begun(*self._begin(key, spec))

    async def obtain(self, key: SessionKey, spec: SessionSpec | None = None) -> Session:
        """The session of this key, made on first use.

        Args:
            key: which.
            spec: how it is to be made; None: with the defaults.

        Raises:
            SessionError: as `create` does.
        """
        session = self._sessions.get(key)
        if session is None:
            return await self._begun(*self._begin(key, spec or self.defaults))
        session.touch()
        await session.ensure_kernel()
        return session

    def _begin(self, key: SessionKey, spec: SessionSpec) -> tuple[Session, asyncio.Task[None]]:
        if self._closing:
            raise ShuttingDown
        kernelspec = self._specs.find(spec.language)
        self._around.quotas.admit_session(len(self.of(key.tenant)))
        session = self._sessions[key] = Session(key, spec, kernelspec, self._around)
        if reason := self._around.ledger.why_ended(key):
            session.announce(StateChange.LOST, reason)
        return session, spawn(self._first_start(session), f"first start of {key}")

    async def _begun(self, session: Session, started: asyncio.Task[None]) -> Session:
        await asyncio.shield(started)
        if session.closed:  # between the start's end and the waiter's turn
            raise SessionClosed
        return session

    async def _first_start(self, session: Session) -> None:
        """A session whose first kernel does not start is not kept, whoever waits for it or has left."""
        try:
            await session.ensure_kernel()
        except BaseException:
            if self._sessions.get(session.key) is session:
                self.end(session.key, "its kernel could not be started")
            await session.close()
            raise

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
        return asyncio.shield(self._end(key, reason))

    def _end(self, key: SessionKey, reason: str) -> asyncio.Future[None]:
        session = self.get(key)
        del self._sessions[key]
        if session.incarnation and not session.spec.throwaway:
            self._around.ledger.end(key, reason)
        ending = session.close(reason)
        self._ending[ending] = session
        ending.add_done_callback(self._ending.pop)
        return ending

    async def freed(self, workspace: str) -> None:
        """Wait until those sessions of a workspace that were ended have nothing any more.

        Args:
            workspace: of a sandbox.
        """
        ending = [ended for ended, session in self._ending.items() if session.spec.workspace == workspace]
        if ending:
            await asyncio.wait(ending)

    async def close(self) -> None:
        """End all sessions, and take no more.

        Raises:
            ExceptionGroup: not all that they had could be freed.
        """
        self._closing = True
        for key in list(self._sessions):
            self._end(key, "the gateway was stopped")
        await together(*self._ending)
