"""The snapshots of all tenants: moments of sandboxes that are kept on disk, also after the sandbox's end.

They count towards the disk for memory (`sleep_disk`) and the tenant's share of it. None is deleted to make room for
another: a new one is refused instead.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import replace

from sessions.model.checkpoint import SleepImage
from sessions.model.errors import CheckpointRefused, LedgerUnavailable, QuotaExceeded, TemplateNotFound
from sessions.model.tasks import spawn
from sessions.model.values import SessionKey
from sessions.sandbox import moments
from sessions.sandbox.sandbox import Sandbox
from sessions.session.services import SessionServices
from sessions.store.session_records import SnapshotRecord

#: maximum snapshots of one tenant
PER_TENANT = 100


class Snapshots:
    """The snapshots of all tenants."""

    def __init__(self, services: SessionServices) -> None:
        """Begin empty.

        Args:
            services: services that sessions and sandboxes share.
        """
        self._services = services
        self._all: dict[SessionKey, SnapshotRecord] = {}
        #: snapshots of each tenant that are being taken
        self._under_way: Counter[str] = Counter()

    def restore(self) -> None:
        """Add the snapshots that an earlier gateway has left."""
        for record in self._services.ledger.snapshots():
            self._add(record)

    def _add(self, record: SnapshotRecord) -> None:
        self._all[record.key] = record
        for image in record.moment.images:
            self._services.kernel_memory.disk.keep(image, record.key.tenant)

    @property
    def images(self) -> list[SleepImage]:
        """The images of all snapshots."""
        return [image for record in self._all.values() for image in record.moment.images]

    def of(self, tenant: str) -> list[SnapshotRecord]:
        """Return the snapshots of one tenant, oldest first."""
        return [record for key, record in self._all.items() if key.tenant == tenant]

    def get(self, key: SessionKey) -> SnapshotRecord:
        """Return one snapshot.

        Raises:
            TemplateNotFound: when there is no such snapshot. A snapshot of another tenant gives the same error.
        """
        if (record := self._all.get(key)) is None:
            raise TemplateNotFound(f"there is no snapshot {key.name[:64]!r}", template=key.name[:64])
        return record

    async def take(self, sandbox: Sandbox, name: str = "", *, memory: bool = True) -> SnapshotRecord:
        """Take a snapshot of a sandbox. It replaces the tenant's snapshot with the same name, if there is one.

        Args:
            sandbox: the sandbox.
            name: name of the snapshot. Empty means none.
            memory: whether the memory of its kernels is written, and not only its files.

        Raises:
            QuotaExceeded: when the tenant has the maximum of snapshots.
            CheckpointRefused: when no snapshot could be taken; the sandbox is as it was.
            SessionError: as in `Moments.take`.
        """
        tenant = sandbox.key.tenant
        replaced = any(name and other.name == name for other in self.of(tenant))
        if len(self.of(tenant)) - replaced + self._under_way[tenant] >= PER_TENANT:
            raise QuotaExceeded(f"at most {PER_TENANT} snapshots: delete one first", limit="snapshots", max=PER_TENANT)
        return await asyncio.shield(spawn(self._take(sandbox, name, memory=memory), f"snapshot of {sandbox.key}"))

    async def _take(self, sandbox: Sandbox, name: str, *, memory: bool) -> SnapshotRecord:
        tenant = sandbox.key.tenant
        self._under_way[tenant] += 1
        try:
            moment = await sandbox.moments.take(None if memory else [])
        finally:
            self._under_way[tenant] -= 1
        key, now = SessionKey(tenant, uuid.uuid4().hex), self._services.ledger.clock()
        spec = replace(sandbox.spec, secret="", key_id=None, paused_at=None)
        record = SnapshotRecord(key, name, sandbox.key.name, spec, moment, now)
        try:
            self._services.ledger.keep(record)
        except LedgerUnavailable as error:
            await moments.discard(moment, self._services)
            raise CheckpointRefused(f"no snapshot could be taken: {error.message}") from error
        former = [other for other in self.of(tenant) if name and other.name == name]
        self._add(record)
        for other in former:
            await self.delete(other.key)
        return record

    async def delete(self, key: SessionKey) -> None:
        """Delete a snapshot. Sandboxes that continue from it still run.

        Raises:
            TemplateNotFound: when there is no such snapshot.
            LedgerUnavailable: when the deletion cannot be recorded; the snapshot stays.
        """
        record = self.get(key)
        self._services.ledger.forget_snapshot(key)
        del self._all[key]
        await moments.discard(record.moment, self._services)

    async def delete_all(self, tenant: str) -> int:
        """Delete all snapshots of a tenant, and return their number.

        Raises:
            LedgerUnavailable: when a deletion cannot be recorded; this and later ones stay.
        """
        own = self.of(tenant)
        for record in own:
            await self.delete(record.key)
        return len(own)
