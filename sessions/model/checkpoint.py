"""Words for kernels whose memory is on disk: they sleep, or can return to an earlier moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessions.model.connection_info import ConnectionInfo


class OnIdle(StrEnum):
    """What happens to a session that was idle for too long."""

    END = "end"
    #: its kernel's memory is kept on disk; the next use continues with it
    SLEEP = "sleep"


class Checkpoints(StrEnum):
    """When a session's checkpoints are taken."""

    #: when a client asks for one
    MANUAL = "manual"
    #: also before each cell, to which the session returns if the cell ends its kernel
    AUTO = "auto"


class SleepFailed(Exception):
    """A kernel's memory could not be written; the kernel goes on as before. The reason is for the operator."""

    #: the reason for the session's client
    shown = "its memory could not be written to disk"


class Unproven(SleepFailed):
    """A kernel's memory was written, and could not be continued with; the kernel goes on as before."""

    shown = "its memory was written to disk, and could not be continued from there"


class Unanswered(Unproven):
    """A kernel that was continued from its memory on disk did not answer for long."""


class Unable(SleepFailed):
    """Kernels cannot be written here."""

    shown = "this gateway cannot write kernels to disk; /readyz says why, under `sleep`"


class InUse(SleepFailed):
    """Something uses the kernel; it goes on as before."""

    shown = "something runs in its sandbox"


class NoRoom(SleepFailed):
    """There is no room on disk; the kernel goes on as before."""

    shown = "there is no room for it on disk"


class CannotWake(Exception):
    """A kernel's memory cannot be used any more; the reason is for the session's client."""


@dataclass(frozen=True, slots=True)
class SleepImage:
    """A kernel's memory on disk."""

    id: str
    #: bytes on disk
    size: int
    #: when it was written, in seconds since 1970
    since: float
    #: image that the kernel's container was made from
    source: str
    #: True if the kernel had connections to other hosts, which end when it is continued
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A kernel's memory and files at one moment, on disk."""

    name: str
    image: SleepImage
    #: of its kernel
    info: ConnectionInfo
    #: True: taken before a cell, without a client's wish
    automatic: bool = False
    #: True: more cells than one have begun since, without one that was taken before the last of them
    outdated: bool = False
