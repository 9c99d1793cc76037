"""A session's identity, which never changes; what it begins with; and its record in the ledger for the next gateway."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sessions.backends.base import Launch
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import Checkpoint, SleepImage
from sessions.model.errors import SessionClosed
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import Network, SessionKey, SessionSpec, StateNotice
from sessions.session.services import SessionServices
from sessions.store.session_records import ContainerRecord, SessionRecord


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties of a session that never change."""

    key: SessionKey
    spec: SessionSpec
    #: kernelspec of its language
    kernelspec: KernelSpec
    #: time of creation in seconds since 1970
    created_at: float
    #: unique id: earlier and later sessions with the same key have other ids
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def launch(self, workspace: str | None) -> Launch:
        """Return the order to start a kernel of this session.

        Args:
            workspace: workspace of the kernel. None means a new workspace.
        """
        of = self.spec
        return Launch(
            self.kernelspec,
            of.limits,
            of.env,
            workspace,
            of.cwd,
            shared=of.in_sandbox or of.temporary_on_disk,
            tenant=self.key.tenant,
            session=self.key.name,
            image=of.image,
            egress=self.key if of.network is Network.ALLOWLIST else None,
        )


#: starts a kernel in another way than from the pool, for example from a checkpoint
StartFunction = Callable[[Launch], Awaitable[Kernel]]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a session begins with."""

    #: the kernel that an earlier gateway has left, awake or asleep; None if there is no such kernel
    left: ContainerRecord | None = None
    #: the checkpoints that an earlier gateway has left
    checkpoints: tuple[Checkpoint, ...] = ()
    #: function that starts the session's first kernel; None if that is an ordinary new kernel
    start: StartFunction | None = None


NO_ORIGIN = Origin()


class SlotRecord:
    """Writes the record of one session, and remembers its content."""

    def __init__(
        self,
        of: Identity,
        services: SessionServices,
        notice: StateNotice,
        origin: Origin,
        closed: Callable[[], bool],
    ) -> None:
        """Write nothing yet.

        Args:
            of: identity of the session.
            services: services that sessions share.
            notice: state of the session's variables.
            origin: what an earlier gateway has recorded.
            closed: returns whether the session was ended.
        """
        self._of = of
        self._ledger = services.ledger
        self._container = origin.left
        self._notice = notice
        self._checkpoints = origin.checkpoints
        self._closed = closed

    def kernel(
        self, kernel: Kernel, notice: StateNotice, image: SleepImage | None = None, *, debugged: bool = False
    ) -> None:
        """Record the present kernel and the state of the variables that the next execution reports.

        Args:
            kernel: the present kernel.
            notice: state of the variables.
            image: memory of the kernel on disk. None means that the kernel is awake.
            debugged: whether the kernel's debugger is about to be started.

        Raises:
            LedgerUnavailable: when the record cannot be written.
            SessionClosed: when the session was ended: it must have no record any more.
        """
        info, marked = kernel.handle.connection_info, debugged or kernel.debugged
        container = ContainerRecord(kernel.handle.id, info, str(kernel.launch.workspace), image, marked)
        self._write(container, notice, self._checkpoints)

    def checkpoints(self, checkpoints: tuple[Checkpoint, ...]) -> None:
        """Record the session's checkpoints.

        Raises:
            LedgerUnavailable: when the record cannot be written.
            SessionClosed: when the session was ended.
        """
        self._write(self._container, self._notice, checkpoints)

    def _write(
        self, container: ContainerRecord | None, notice: StateNotice, checkpoints: tuple[Checkpoint, ...]
    ) -> None:
        if self._closed():
            raise SessionClosed
        of = self._of
        if container is not None and not of.spec.throwaway:  # the next gateway removes a container without a record
            self._ledger.keep(SessionRecord(of.key, of.spec, of.created_at, of.id, container, notice, checkpoints))
        self._container, self._notice, self._checkpoints = container, notice, checkpoints
