"""The registry: the only mutable map from `SessionKey` to `Session`. It starts each session exactly once."""

from __future__ import annotations

import asyncio

from sessions.errors import InvalidRequest, SessionClosed, SessionExists, SessionNotFound, ShuttingDown
from sessions.identity import Identity
from sessions.kernelspecs import KernelSpecs
from sessions.models import SessionKey, SessionSpec, StateChange
from sessions.services import SessionServices
from sessions.session import Session
from sessions.tasks import gather_all, spawn


class Registry:
    """All sessions of all tenants."""

    def __init__(self, specs: KernelSpecs, defaults: SessionSpec, services: SessionServices) -> None:
        """Begin empty.

        Args:
            specs: kernelspecs of all languages.
            defaults: settings of a session that is made on first use.
            services: services that sessions share.
        """
        self.defaults = defaults
        self._specs = specs
        self._services = services
        self._sessions: dict[SessionKey, Session] = {}
        self._closing = False
        #: ends under way, and their sessions; not every caller waits for the end that it has asked for
        self._ending: dict[asyncio.Future[None], Session] = {}

    def restore(self) -> None:
        """Add the sessions that an earlier gateway has left; their kernels are taken over later."""
        for record in self._services.ledger.sessions():
            try:
                kernelspec = self._specs.find(record.spec.language)
            except InvalidRequest:
                self._services.ledger.end(record.key, f"there is no language {record.spec.language!r} any more")
                continue
            self._sessions[record.key] = Session(
                Identity(record.key, record.spec, kernelspec, record.created_at), self._services, record
            )

    def all(self) -> list[Session]:
        """Return all sessions, oldest first."""
        return list(self._sessions.values())

    def of(self, tenant: str) -> list[Session]:
        """Return the sessions of one tenant, oldest first."""
        return [session for key, session in self._sessions.items() if key.tenant == tenant]

    def language(self, name: str) -> str:
        """Return the language with this name or alias.

        Raises:
            InvalidRequest: when there is none.
        """
        return self._specs.find(name).name

    def get(self, key: SessionKey) -> Session:
        """Return one session.

        Raises:
            SessionNotFound: when there is none with this key. A session of another tenant gives the same error.
        """
        session = self._sessions.get(key)
        if session is None:
            raise SessionNotFound(f"there is no session {key.name!r}", session=key.name)
        return session

    async def create(self, key: SessionKey, spec: SessionSpec) -> Session:
        """Make a session and start its kernel.

        Raises:
            SessionExists: when there is one with this key.
            InvalidRequest: when the language is unknown.
            QuotaExceeded: when the tenant has as many sessions as it may have.
            SessionError: when its kernel could not be started; the session is not kept.
        """
        if key in self._sessions:
            raise SessionExists(f"a session {key.name!r} exists already", session=key.name)
        return await self._begun(*self._begin(key, spec))

    async def get_or_create(self, key: SessionKey, spec: SessionSpec | None = None) -> Session:
        """Return the session with this key, made on first use.

        Args:
            key: key of the session.
            spec: settings of a new session; None: the defaults.

        Raises:
            SessionError: as in `create`.
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
        self._services.quotas.admit_session(len(self.of(key.tenant)))
        session = self._sessions[key] = Session(
            Identity(key, spec, kernelspec, self._services.ledger.clock()), self._services
        )
        if reason := self._services.ledger.why_ended(key):
            session.announce(StateChange.LOST, reason)
        return session, spawn(self._first_start(session), f"first start of {key}")

    async def _begun(self, session: Session, started: asyncio.Task[None]) -> Session:
        await asyncio.shield(started)
        if session.closed:  # between the end of the start and this caller's turn in the event loop
            raise SessionClosed
        return session

    async def _first_start(self, session: Session) -> None:
        """Start a session's first kernel. If that fails, the session is not kept, even when its client has left."""
        try:
            await session.ensure_kernel()
        except BaseException:
            if self._sessions.get(session.key) is session:
                self.end(session.key, "its kernel could not be started")
            await session.close()
            raise

    def end(self, key: SessionKey, reason: str = "the session was ended") -> asyncio.Future[None]:
        """End a session and free everything it has. It is out of the registry when this returns.

        Args:
            key: key of the session.
            reason: why, for a client that returns later.

        Returns:
            a future that is done when everything is freed; cancelling it does not stop that.

        Raises:
            SessionNotFound: when there is none.
        """
        return asyncio.shield(self._end(key, reason))

    def _end(self, key: SessionKey, reason: str) -> asyncio.Future[None]:
        session = self.get(key)
        del self._sessions[key]
        if session.incarnation and not session.spec.throwaway:
            self._services.ledger.end(key, reason)
        ending = session.close(reason)
        self._ending[ending] = session
        ending.add_done_callback(self._ending.pop)
        return ending

    async def freed(self, workspace: str) -> None:
        """Wait until everything of the ended sessions on a workspace is freed.

        Args:
            workspace: workspace of a sandbox.
        """
        ending = [ended for ended, session in self._ending.items() if session.spec.workspace == workspace]
        if ending:
            await asyncio.wait(ending)

    async def close(self) -> None:
        """End all sessions, and make no more.

        Raises:
            ExceptionGroup: when not everything they had could be freed.
        """
        self._closing = True
        for key in list(self._sessions):
            self._end(key, "the gateway was stopped")
        await gather_all(*self._ending)
