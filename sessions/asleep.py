"""Words for kernels that sleep: their memory is on disk, and nothing of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnIdle(StrEnum):
    """What happens to a session that was idle for too long."""

    END = "end"
    #: its kernel's memory is kept on disk; the next use continues with it
    SLEEP = "sleep"


class SleepFailed(Exception):
    """A kernel's memory could not be written; the kernel goes on as before. The reason is for the operator."""

    #: the reason for the session's client
    shown = "its memory could not be written to disk"


class Unproven(SleepFailed):
    """A kernel's memory was written, and could not be continued with; the kernel goes on as before."""

    shown = "its memory was written to disk, and could not be continued from there"


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
