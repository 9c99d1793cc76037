"""The ledger's records of sessions and sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessions.model.checkpoint import Checkpoint, SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.values import SandboxSpec, SessionKey, SessionSpec, StateNotice


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container, with or without a kernel."""

    id: str
    info: ConnectionInfo
    workspace: str
    #: memory of a sleeping kernel on disk. None means that the kernel runs.
    asleep: SleepImage | None = None
    #: whether the kernel's debugger was started, see `Kernel.debugged`
    debugged: bool = False


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session."""

    key: SessionKey
    spec: SessionSpec
    #: seconds since 1970
    created_at: float
    #: id of the session, see `Identity`
    id: str
    #: container of the session's kernel
    container: ContainerRecord
    #: what the next execution reports about the variables
    notice: StateNotice = field(default_factory=StateNotice)
    #: the session's checkpoints, oldest first. Ledgers have them by this name since before they were called so
    snapshots: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox."""

    key: SessionKey
    spec: SandboxSpec
    workspace: str
    #: seconds since 1970
    created_at: float
    #: the sandbox's own container. None means no container at the moment.
    container: ContainerRecord | None = None
    #: why the sandbox has lost files. None means that no files are lost.
    loss: str | None = None
    #: whether not all of its sessions continue yet, because it is being made from a moment of another sandbox
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class MomentSession:
    """One session of a sandbox, as it was at one moment."""

    language: str
    cwd: str
    #: whether it is the session for requests that name only its language
    default: bool
    #: what the next execution reported about the variables
    notice: StateNotice
    #: memory of its kernel on disk
    image: SleepImage
    #: connection of its kernel
    info: ConnectionInfo


@dataclass(frozen=True, slots=True)
class Moment:
    """A sandbox as it was at one moment, on disk."""

    #: the files in the workspace, and in the `/tmp` that its containers share
    files: SleepImage
    sessions: tuple[MomentSession, ...]

    @property
    def images(self) -> list[SleepImage]:
        """All images."""
        return [self.files, *(session.image for session in self.sessions)]


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A moment of a sandbox that is kept, also after the sandbox's end."""

    #: tenant and id
    key: SessionKey
    #: name that its client has given it, unique among the tenant's snapshots. Empty means none.
    name: str
    #: name of the sandbox
    source: str
    #: settings of the sandbox
    spec: SandboxSpec
    moment: Moment
    #: seconds since 1970
    created_at: float

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(image.size for image in self.moment.images)
