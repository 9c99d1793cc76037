"""The registry: all sessions of all tenants."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sessions.model.checkpoint import CheckpointMode
from sessions.model.errors import CheckpointRefused, InvalidRequest, SessionExists, SessionNotFound
from sessions.model.kernelspecs import KernelSpec, KernelSpecs
from sessions.model.values import SessionKey, SessionSpec, StateChange, StateNotice
from sessions.session.owner import End, Owners
from sessions.session.record import NO_ORIGIN, Identity, Origin, StartFunction
from sessions.session.services import SessionServices
from sessions.session.session import Session

#: reason in the next reply of a session that slept while the gateway was restarted
SLEPT_ON = "the gateway was restarted while the session slept"


class Registry(Owners[Session]):
    """All sessions of all tenants."""

    def __init__(self, specs: KernelSpecs, defaults: SessionSpec, services: SessionServices) -> None:
        """Begin empty.

        Args:
            specs: kernelspecs of all languages.
            defaults: settings of a session whose client asks for nothing.
            services: services that sessions share.
        """
        super().__init__(services)
        self.defaults = defaults
        self._specs = specs
        self._require_running: Callable[[str], None] = _runs

    def let_refuse(self, require_running: Callable[[str], None]) -> None:
        """Let the sandboxes, which this room does not know, refuse the use of a session on a workspace of theirs.

        Args:
            require_running: raises an error while the sandbox on this workspace is paused.
        """
        self._require_running = require_running

    def defaults_of(self, tenant: str) -> SessionSpec:
        """Return the settings of a tenant's session whose client asks for nothing."""
        return self._services.own_limits(tenant).lower(self.defaults)

    def restore(self) -> None:
        """Add the sessions that an earlier gateway has left; their kernels are taken over later."""
        for record in self._services.ledger.sessions():
            try:
                kernelspec = self._specs.find(record.spec.language)
            except InvalidRequest:
                self._services.ledger.end(record.key, f"there is no language {record.spec.language!r} any more")
                continue
            identity = Identity(record.key, record.spec, kernelspec, record.created_at, record.id)
            origin = Origin(record.container, record.snapshots)
            notice = record.notice if record.container.asleep is None else record.notice.with_reason(SLEPT_ON)
            self._add(self._session(identity, notice, origin))

    def _session(self, identity: Identity, notice: StateNotice, origin: Origin = NO_ORIGIN) -> Session:
        def require_running() -> None:
            if identity.spec.workspace is not None:
                self._require_running(identity.spec.workspace)

        return Session(identity, self._services, notice, origin, require_running)

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._services.ledger.clock()

    def language(self, name: str) -> str:
        """Return the language with this name or alias.

        Raises:
            InvalidRequest: when there is no such language.
        """
        return self._specs.find(name).name

    def kernelspec(self, name: str) -> KernelSpec:
        """Return the kernelspec of the language with this name or alias.

        Raises:
            InvalidRequest: when there is no such language.
        """
        return self._specs.find(name)

    def get(self, key: SessionKey) -> Session:
        """Return one session.

        Raises:
            SessionNotFound: when there is no session with this key. A session of another tenant gives the same error.
        """
        session = self._present.get(key)
        if session is None:
            ended = self._services.ledger.why_ended(key)
            message = f"there is no session {key.name!r}" + (f" any more: {ended}" if ended else "")
            raise SessionNotFound(message, session=key.name)
        return session

    def find(self, key: SessionKey) -> Session | None:
        """Return one session. None means that there is none with this key."""
        return self._present.get(key)

    async def create(self, key: SessionKey, spec: SessionSpec) -> Session:
        """Make a session and start its kernel.

        Raises:
            SessionExists: when there is a session with this key.
            InvalidRequest: when the language is unknown or needs more memory than the session may have, or when the
                session would have more than the tenant's own limits allow.
            NetworkNotAllowed: when the tenant may not use the network that the session asks for.
            QuotaExceeded: when the tenant has the maximum of sessions and sandboxes.
            SessionError: when its kernel could not be started; the session is not kept.
        """
        if key in self._present:
            raise SessionExists(f"a session {key.name!r} exists already", session=key.name)
        return await self._create(key, spec)

    async def branch(self, source: Session, key: SessionKey, checkpoint: str | None) -> Session:
        """Make a session that begins with the variables and files of another session.

        Args:
            source: the other session.
            key: key of the new session.
            checkpoint: name of a checkpoint of the other session. None means its present state.

        Raises:
            SessionExists: when there is a session with this key.
            CheckpointNotFound: when there is no such checkpoint.
            CheckpointRefused: when the checkpoint cannot be taken or used.
            SessionError: as in `create`.
        """
        if key in self._present:
            raise SessionExists(f"a session {key.name!r} exists already", session=key.name)
        start = source.checkpoints.branch(checkpoint)
        return await self.begin_with(key, source.spec, start, branch_notice(source), besides=source)

    async def begin_with(
        self,
        key: SessionKey,
        spec: SessionSpec,
        start: StartFunction,
        notice: StateNotice,
        *,
        besides: Session | None = None,
    ) -> Session:
        """Make a session whose first kernel is started in another way than from the pool.

        Args:
            key: key of the session.
            spec: its settings.
            start: starts its first kernel. This is called when name and quota are taken.
            notice: state of the variables that its first execution reports.
            besides: session that does not give way to the new one.

        Raises:
            SessionExists: when there is a session with this key.
            SessionError: as in `create`.
        """
        if key in self._present:
            raise SessionExists(f"a session {key.name!r} exists already", session=key.name)
        self._services.own_limits(key.tenant).check_session(spec)
        self._admit(key.tenant, 0 if spec.in_sandbox else spec.limits.disk, besides=besides)
        identity = Identity(key, spec, self._specs.find(spec.language), self.now())
        session = self._session(identity, notice, Origin(start=start))
        await self._start(session)
        return session

    async def get_or_create(self, key: SessionKey, spec: SessionSpec | None = None) -> Session:
        """Return the session with this key, made on first use.

        Args:
            key: key of the session.
            spec: settings of a new session. None means the defaults.

        Raises:
            SessionError: as in `create`.
        """
        session = self._present.get(key)
        if session is None:
            return await self._create(key, spec or self.defaults_of(key.tenant))
        session.touch()
        await session.start()
        return session

    async def _create(self, key: SessionKey, spec: SessionSpec) -> Session:
        kernelspec = self._specs.find(spec.language)
        kernelspec.check(spec.limits)
        self._services.egress.require(key, spec.network)
        self._services.own_limits(key.tenant).check_session(spec)
        if spec.checkpoints is CheckpointMode.AUTO and not self._services.kernel_memory.ability.on:
            raise CheckpointRefused("this gateway cannot take checkpoints: /readyz says why, under `sleep`")
        self._admit(key.tenant, spec.limits.disk if spec.workspace is None else 0)
        ledger = self._services.ledger
        reason, before = ledger.why_ended(key), ledger.last_end_at(key.tenant, spec.place)
        if reason is None and before is not None:
            reason = f"an earlier kernel of {spec.place} has ended: {before[1]}"
        notice = StateNotice(StateChange.LOST if reason else StateChange.NEW, reason, incarnation=0)
        session = self._session(Identity(key, spec, kernelspec, ledger.clock()), notice)
        await self._start(session)
        if before is not None:
            ledger.forget_end(before[0])
        return session

    @asynccontextmanager
    async def throwaway(self, tenant: str, spec: SessionSpec) -> AsyncIterator[Session]:
        """Make a session with a random name, which no client uses again, and end it after the block.

        Raises:
            SessionError: as in `create`.
        """
        key = SessionKey(tenant, f"run-{secrets.token_hex(8)}")
        try:
            yield await self.create(key, replace(spec, throwaway=True))
        finally:
            # Nobody waits for the end of the session. The culler may have ended the session already.
            with suppress(SessionNotFound):
                self.end(key, "its run has ended")

    def end(self, key: SessionKey, reason: str | None = None) -> asyncio.Future[None]:
        """End a session and free all its resources. The registry has forgotten it when this method returns.

        Args:
            key: key of the session.
            reason: why the gateway ends the session, for a client that returns later. None means that a client has
                asked for the end.

        Returns:
            a future that is done when everything is freed. Cancelling the future does not stop the work.

        Raises:
            SessionNotFound: when there is no session with this key.
        """
        session = self.get(key)
        self._remove(session, reason or "the session was ended", asked=reason is None)
        return session.close()

    def _record_end(self, owner: Session, end: End) -> None:
        if owner.incarnation and not owner.spec.throwaway:
            # A client that has ended its kernel itself need not be told about that with its next kernel.
            self._services.ledger.end(owner.key, end.reason, "" if end.asked else owner.spec.place)

    async def freed(self, workspace: str) -> None:
        """Wait until all resources of the ended sessions on a workspace are freed.

        Args:
            workspace: workspace of a sandbox.
        """
        ending = [session.close() for session in self._ending if session.spec.workspace == workspace]
        if ending:
            await asyncio.wait(ending)


def _runs(_workspace: str) -> None:
    """Refuse nothing: there are no sandboxes."""


def branch_notice(source: Session) -> StateNotice:
    """Return what the first execution of a branch reports about the variables."""
    return StateNotice(StateChange.PRESERVED, f"a branch of the session {source.key.name!r}", incarnation=0)
