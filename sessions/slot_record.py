"""What the ledger keeps of a session, for the next gateway."""

from __future__ import annotations

from sessions.asleep import SleepImage, Snapshot
from sessions.identity import Identity
from sessions.kernels.kernel import Kernel
from sessions.notices import StateNotice
from sessions.services import SessionServices
from sessions.snapshots import Snapshots
from sessions.store.session_records import ContainerRecord, SessionRecord


class SlotRecord:
    """Writes the record of one session."""

    def __init__(
        self, of: Identity, services: SessionServices, snapshots: Snapshots, left: ContainerRecord | None
    ) -> None:
        """Write nothing yet.

        Args:
            of: identity of the session.
            services: services that sessions share.
            snapshots: snapshots of the session.
            left: the kernel that an earlier gateway has recorded.
        """
        self._of = of
        self._ledger = services.ledger
        self._snapshots = snapshots
        #: the last kernel that was recorded
        self._last = left

    def kernel(self, kernel: Kernel, notice: StateNotice, image: SleepImage | None = None) -> ContainerRecord:
        """Record the present kernel, asleep if it has an image.

        Raises:
            LedgerUnavailable: when the record cannot be written.
        """
        info = kernel.handle.connection_info
        container = ContainerRecord(kernel.handle.id, info, str(kernel.launch.workspace), image)
        self._write(container, notice, self._snapshots.all)
        self._last = container
        return container

    async def keep_snapshots(self, notice: StateNotice, kept: tuple[Snapshot, ...]) -> None:
        """Record other snapshots, and delete those that the session has no more.

        Raises:
            LedgerUnavailable: when the record cannot be written.
        """
        if self._last is not None:
            self._write(self._last, notice, kept)
        await self._snapshots.keep_only(kept)

    def _write(self, container: ContainerRecord, notice: StateNotice, snapshots: tuple[Snapshot, ...]) -> None:
        of = self._of
        if not of.spec.throwaway:  # the next gateway reaps a container without a record
            self._ledger.keep(SessionRecord(of.key, of.spec, of.created_at, of.id, container, notice, snapshots))
