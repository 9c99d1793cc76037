"""Values and errors for kernels whose memory is on disk, because the session sleeps or has checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessions.model.connection_info import ConnectionInfo


class OnIdle(StrEnum):
    """What happens to a session after its idle timeout."""

    #: it sleeps where that is proven to work; elsewhere, and if it cannot, it ends. Asleep, it gives way to newer ones
    AUTO = "auto"
    END = "end"
    #: the kernel's memory is written to disk, and the next use of the session continues from there
    SLEEP = "sleep"


class CheckpointMode(StrEnum):
    """When a session's checkpoints are taken."""

    #: when a client asks for one
    MANUAL = "manual"
    #: also before each cell; if the cell ends its kernel, the session returns to that checkpoint
    AUTO = "auto"


class SleepFailed(Exception):
    """A kernel's memory could not be written. The kernel still runs. The exception's text is for the operator."""

    #: text for the session's client
    shown = "its memory could not be written to disk"


class Unproven(SleepFailed):
    """A kernel's memory was written, but a trial could not continue from it. The kernel still runs."""

    shown = "its memory was written to disk, and could not be continued from there"


class Unanswered(Unproven):
    """A kernel was continued from its memory on disk, and did not answer in time."""


class Unable(SleepFailed):
    """This gateway cannot write kernels to disk."""

    shown = "this gateway cannot write kernels to disk; /readyz says why, under `sleep`"


class InUse(SleepFailed):
    """The kernel or its sandbox is in use. The kernel still runs."""

    shown = "something runs in its sandbox"


class NoRoom(SleepFailed):
    """The disk has no room. The kernel still runs."""

    shown = "there is no room for it on disk"


class CannotWake(Exception):
    """A kernel's memory on disk can no longer be used. The exception's text is for the session's client."""


@dataclass(frozen=True, slots=True)
class SleepImage:
    """A kernel's memory on disk."""

    id: str
    #: bytes on disk
    size: int
    #: time of writing, in seconds since 1970
    since: float
    #: image that the kernel's container was made from
    source: str
    #: whether the kernel had connections to other hosts; these end when the kernel continues
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a session: its kernel's memory and files, on disk."""

    name: str
    image: SleepImage
    #: connection of the kernel
    info: ConnectionInfo
    #: whether the gateway took it before a cell, and no client asked for it
    automatic: bool = False
    #: whether more than one cell has begun since this checkpoint, and none was taken before the last cell
    outdated: bool = False
