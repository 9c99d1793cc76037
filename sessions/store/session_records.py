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
