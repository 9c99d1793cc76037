"""What a session begins with, what of it never changes, and what the ledger keeps of it for the next gateway."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sessions.backends.base import Launch
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import SleepImage, Snapshot
from sessions.model.errors import SessionClosed
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import Network, SessionKey, SessionSpec, StateNotice
from sessions.session.services import SessionServices
from sessions.store.session_records import ContainerRecord, SessionRecord


@dataclass(frozen=True, slots=True)
class Identity:
    """One session, independent of its kernel."""

    key: SessionKey
    spec: SessionSpec
    #: kernelspec of its language
    kernelspec: KernelSpec
    #: seconds since 1970
    created_at: float
    #: differs from the ids of all other sessions, also of earlier and later ones with the same key
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def launch(self, workspace: str | None) -> Launch:
        """Return the order to start a kernel of it.

        Args:
            workspace: workspace of the kernel; None: a new one.
        """
        of = self.spec
        return Launch(
            self.kernelspec,
            of.limits,
            of.env,
            workspace,
            of.cwd,
            shared=of.in_sandbox,
            tenant=self.key.tenant,
            image=of.image,
            egress=self.key if of.network is Network.ALLOWLIST else None,
        )


#: starts a kernel in a way of its own
Start = Callable[[Launch], Awaitable[Kernel]]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a session begins with."""

    #: the kernel that an earlier gateway has left; None: there is none
    left: ContainerRecord | None = None
    #: the snapshots that an earlier gateway has left
    snapshots: tuple[Snapshot, ...] = ()
    #: starts its first kernel; None: it is a new one
    start: Start | None = None


NOTHING = Beginning()


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

    def kernel(self, kernel: Kernel, notice: StateNotice, image: SleepImage | None = None) -> None:
        """Record the present kernel, asleep if it has an image, and what the next execution reports.

        Raises:
            LedgerUnavailable: when the record cannot be written.
            SessionClosed: when the session was ended: its record is gone, and stays so.
        """
        info = kernel.handle.connection_info
        container = ContainerRecord(kernel.handle.id, info, str(kernel.launch.workspace), image)
        self._write(container, notice, self._snapshots)

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
