"""All sandboxes, and the sandboxes that have ended last."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from sessions.backends.abilities import Ability
from sessions.model.errors import LedgerUnavailable, SandboxNotFound, SessionClosed, SessionError, SessionExists
from sessions.model.tasks import spawn
from sessions.model.values import SandboxSpec, SessionKey
from sessions.sandbox import moments
from sessions.sandbox.sandbox import Sandbox, launch_for
from sessions.sandbox.snapshots import Snapshots
from sessions.session.owner import End, Owners
from sessions.session.registry import Registry, branch_notice
from sessions.session.services import SessionServices
from sessions.session.session import Session
from sessions.store.session_records import Moment

#: number of ended sandboxes that are remembered, over all tenants, to report when and why they ended
REMEMBERED = 1000


class Sandboxes(Owners[Sandbox]):
    """All sandboxes of all tenants."""

    def __init__(self, registry: Registry, services: SessionServices) -> None:
        """Begin empty.

        Args:
            registry: contains the sandboxes' sessions.
            services: services that sessions and sandboxes share.
        """
        super().__init__(services, beside=registry)
        self._registry = registry
        self._ended: dict[SessionKey, Sandbox] = {}
        #: the present sandboxes with a secret, by name: their requests name no tenant
        self._with_secret: dict[str, Sandbox] = {}
        #: the present sandboxes by workspace, which each use of one of their sessions asks for
        self._with_workspace: dict[str, Sandbox] = {}
        #: the snapshots of all tenants' sandboxes
        self.snapshots = Snapshots(services)
        registry.let_refuse(self._require_running)

    def _require_running(self, workspace: str) -> None:
        """Refuse the use of a session whose sandbox is paused: another dialect may know the session by its name.

        Raises:
            SandboxNotFound: when the sandbox is paused.
        """
        if (sandbox := self._with_workspace.get(workspace)) is not None:
            sandbox.pausing.check()

    def restore(self) -> None:
        """Add the sandboxes that an earlier gateway has left; their containers are taken over later."""
        for record in self._services.ledger.sandboxes():
            self._add(Sandbox(record.key, record.spec, self._registry, self._services, record=record))
        self.snapshots.restore()

    def of(self, tenant: str) -> list[Sandbox]:
        """Return the sandboxes of one tenant: first those that have ended, then the others."""
        return [*(ended for key, ended in self._ended.items() if key.tenant == tenant), *super().of(tenant)]

    def find(self, key: SessionKey) -> Sandbox:
        """Return a sandbox, also a remembered sandbox that has ended.

        Raises:
            SandboxNotFound: when there is no sandbox with this key. A sandbox of another tenant gives the same error.
        """
        sandbox = self._present.get(key) or self._ended.get(key)
        if sandbox is None:
            raise SandboxNotFound(f"there is no sandbox {key.name!r}", sandbox=key.name)
        return sandbox

    def with_secret(self, name: str) -> Sandbox | None:
        """Return the present sandbox of any tenant that has this name and a secret. The caller checks the secret."""
        return self._with_secret.get(name)

    def _add(self, owner: Sandbox) -> None:
        super()._add(owner)
        self._with_workspace[owner.workspace] = owner
        if owner.spec.secret:
            self._with_secret.setdefault(owner.key.name, owner)

    def get(self, key: SessionKey) -> Sandbox:
        """Return a sandbox that can be used.

        Raises:
            SandboxNotFound: when there is no sandbox with this key, or it has ended; the message says why it ended.
        """
        sandbox = self.find(key)
        self.check_lifetime(sandbox)
        if sandbox.end is not None:
            raise SandboxNotFound(f"the sandbox has ended: {sandbox.end.reason}", sandbox=key.name)
        sandbox.touch()
        return sandbox

    def check_lifetime(self, sandbox: Sandbox) -> None:
        """Begin the pause or the end of a sandbox whose lifetime is over, without waiting for the culler."""
        if not self.pause_at_end(sandbox) and sandbox.end is None and 0 < sandbox.spec.lifetime <= sandbox.age():
            self.end(sandbox.key, f"it reached its maximum lifetime of {sandbox.spec.lifetime:g} s")

    def pause_at_end(self, sandbox: Sandbox) -> bool:
        """Begin the pause of a sandbox whose lifetime is over, if its client wants that and the backend can.

        Returns:
            whether the sandbox is paused, for this reason or another, or is to be paused as soon as that can be
            recorded. Its lifetime does not end it then.
        """
        over = (
            sandbox.spec.auto_pause
            and sandbox.pauses.on
            and not sandbox.closed
            and 0 < sandbox.spec.lifetime <= sandbox.age()
        )
        if over and not sandbox.pausing.paused and sandbox.left_container is None:
            with suppress(LedgerUnavailable):  # the ledger has logged it, and the next call tries again
                sandbox.pausing.begin()
        return sandbox.pausing.paused or over

    async def create(self, key: SessionKey, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox, and start its own container unless there is a warm one.

        Raises:
            SessionExists: when there is a sandbox with this key.
            InvalidRequest: when the sandbox would have more than the tenant's own limits allow.
            QuotaExceeded: when the tenant has the maximum of sessions and sandboxes.
            SessionError: when its container could not be started; the sandbox is not kept.
        """
        return await self._create(key, spec, None)

    async def get_or_create(self, key: SessionKey, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox with this key, made with `spec` on first use.

        Raises:
            SessionError: as in `create`.
        """
        sandbox = self._present.get(key)
        if sandbox is not None:
            self.check_lifetime(sandbox)
        if sandbox is None or sandbox.end is not None:
            return await self.create(key, spec)
        sandbox.touch()
        await sandbox.ensure_container()
        return sandbox

    async def _create(self, key: SessionKey, spec: SandboxSpec, moment: Moment | None) -> Sandbox:
        if key in self._present:
            raise SessionExists(f"a sandbox {key.name!r} exists already", sandbox=key.name)
        self._services.own_limits(key.tenant).check(spec.limits)
        self._admit(key.tenant, spec.limits.disk)
        warm = None if moment else self._services.kernels.take_sandbox(launch_for(key, spec))
        sandbox = Sandbox(key, spec, self._registry, self._services, warm=warm, moment=moment)
        self._ended.pop(key, None)
        await self._start(sandbox)
        return sandbox

    # -- copies ---------------------------------------------------------------------------------------------

    @property
    def copies(self) -> Ability:
        """Whether sandboxes can be copied, which needs what sleep needs."""
        return self._services.kernel_memory.ability

    async def fork(
        self, source: Sandbox, wanted: Sequence[tuple[SessionKey, SandboxSpec]]
    ) -> list[Sandbox | SessionError]:
        """Make sandboxes that begin with the memory and files of another one, all at the same moment.

        Args:
            source: the other sandbox, which continues.
            wanted: key and spec of each new sandbox.

        Returns:
            the new sandboxes. In place of a sandbox that could not be made, the reason.

        Raises:
            QuotaExceeded: when the tenant may have no further sandbox at all.
            CheckpointRefused: when the source cannot be copied.
            SessionError: as in `Moments.take`.
        """
        self._require_room(source.key.tenant, source.disk)
        return await asyncio.shield(spawn(self._fork(source, wanted), f"forks of {source.key}"))

    async def _fork(
        self, source: Sandbox, wanted: Sequence[tuple[SessionKey, SandboxSpec]]
    ) -> list[Sandbox | SessionError]:
        moment = await source.moments.take()
        made: list[Sandbox | SessionError] = []
        try:
            for key, spec in wanted:  # one after the other, because each restore uses all processors of a small machine
                try:
                    made.append(await self.continue_from(moment, key, spec))
                except SessionError as error:
                    made.append(error)
        finally:
            await moments.discard(moment, self._services)
        return made

    async def continue_from(self, moment: Moment, key: SessionKey, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox that begins with the memory and files of a moment.

        Raises:
            CheckpointRefused: when the moment cannot be used any more.
            SessionError: as in `create`.
        """
        return await self._create(key, spec, moment)

    def end_unfinished(self) -> None:
        """End the sandboxes whose sessions did not all continue from a moment when an earlier gateway was killed."""
        for sandbox in self.all():
            if sandbox.unfinished:
                self.end(sandbox.key, "the gateway was restarted while it was made")

    async def branch(self, source: Session, key: SessionKey, checkpoint: str | None) -> Session:
        """Make a session that begins with the variables and files of another session, as `Registry.branch`.

        A branch of a sandbox's session has a copy of all files of the sandbox, and does not belong to the sandbox.

        Raises:
            SessionError: as in `Registry.branch`.
        """
        if (workspace := source.spec.workspace) is None:
            return await self._registry.branch(source, key, checkpoint)
        if checkpoint is not None:
            source.checkpoints.find(checkpoint)  # there are none: it shares its files
        if (sandbox := self._with_workspace.get(workspace)) is None:  # the sandbox is being ended with its sessions
            raise SessionClosed
        timeout = source.spec.idle_timeout or self._registry.defaults_of(key.tenant).idle_timeout  # no lifetime ends it
        spec = replace(source.spec, workspace=None, idle_timeout=timeout, temporary_on_disk=True)
        start = partial(sandbox.moments.branch, source)
        return await self._registry.begin_with(key, spec, start, branch_notice(source), besides=source)

    # -- the end --------------------------------------------------------------------------------------------

    def end(self, key: SessionKey, reason: str = "it was stopped") -> asyncio.Future[None]:
        """End a sandbox and free all its resources. No client can use it when this method returns.

        Args:
            key: key of the sandbox.
            reason: why it ends, for clients that use the sandbox later.

        Returns:
            a future that is done when everything is freed. Cancelling the future does not stop the work.

        Raises:
            SandboxNotFound: when there is no sandbox with this key.
        """
        sandbox = self.find(key)
        if key not in self._present:
            return sandbox.close()
        self._ended[key] = sandbox
        if len(self._ended) > REMEMBERED:  # forget the oldest of the tenant with the most, as in `store/ended.py`
            tenant = Counter(ended.tenant for ended in self._ended).most_common(1)[0][0]
            del self._ended[next(ended for ended in self._ended if ended.tenant == tenant)]
        self._remove(sandbox, reason)
        return sandbox.close()

    def _remove(self, owner: Sandbox, reason: str, *, asked: bool = False) -> None:
        del self._with_workspace[owner.workspace]
        if self._with_secret.get(owner.key.name) is owner:
            del self._with_secret[owner.key.name]
        super()._remove(owner, reason, asked=asked)

    def _record_end(self, owner: Sandbox, end: End) -> None:  # noqa: ARG002 - `_ended` remembers it
        self._services.ledger.end_sandbox(owner.key)

    async def forget(self, key: SessionKey) -> Sandbox:
        """End a sandbox and forget it.

        Returns:
            the sandbox, for its last data.

        Raises:
            SandboxNotFound: when there is no sandbox with this key.
        """
        sandbox = self.find(key)
        await self.end(key, "it was deleted")
        self._ended.pop(key, None)
        return sandbox
