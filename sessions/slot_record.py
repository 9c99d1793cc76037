"""What the ledger keeps of a session, for the next gateway."""

from __future__ import annotations

from collections.abc import Callable

from sessions.asleep import SleepImage, Snapshot
from sessions.beginning import Beginning
from sessions.errors import SessionClosed
from sessions.identity import Identity
from sessions.kernels.kernel import Kernel
from sessions.notices import StateNotice
from sessions.services import SessionServices
from sessions.store.session_records import ContainerRecord, SessionRecord


class SlotRecord:
    """Writes the record of one session, and knows what it says."""

    def __init__(
        self,
        of: Identity,
        services: SessionServices,
        notice: StateNotice,
        beginning: Beginning,
        closed: Callable[[], bool],
    ) -> None:
        """Write nothing yet.

        Args:
            of: identity of the session.
            services: services that sessions share.
            notice: about its variables.
            beginning: what an earlier gateway has recorded.
            closed: returns whether the session was ended.
        """
        self._of = of
        self._ledger = services.ledger
        self._container = beginning.left
        self._notice = notice
        self._snapshots = beginning.snapshots
        self._closed = closed

    def kernel(self, kernel: Kernel, notice: StateNotice, image: SleepImage | None = None) -> ContainerRecord:
        """Record the present kernel, asleep if it has an image, and what the next execution reports.

        Raises:
            LedgerUnavailable: when the record cannot be written.
            SessionClosed: when the session was ended: its record is gone, and stays so.
        """
        info = kernel.handle.connection_info
        container = ContainerRecord(kernel.handle.id, info, str(kernel.launch.workspace), image)
        self._write(container, notice, self._snapshots)
        return container

    def snapshots(self, snapshots: tuple[Snapshot, ...]) -> None:
        """Record the session's snapshots.

        Raises:
            LedgerUnavailable: when the record cannot be written.
            SessionClosed: when the session was ended.
        """
        self._write(self._container, self._notice, snapshots)

    def _write(self, container: ContainerRecord | None, notice: StateNotice, snapshots: tuple[Snapshot, ...]) -> None:
        if self._closed():
            raise SessionClosed
        of = self._of
        if container is not None and not of.spec.throwaway:  # the next gateway reaps a container without a record
            self._ledger.keep(SessionRecord(of.key, of.spec, of.created_at, of.id, container, notice, snapshots))
        self._container, self._notice, self._snapshots = container, notice, snapshots
