"""How kernels end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ExitReason(StrEnum):
    """Why a kernel is gone."""

    #: the kernel used more memory than its limit
    OOM = "out_of_memory"
    KILLED = "killed"
    #: the kernel ended on its own, crashed, or was ended from outside the gateway
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class KernelExit:
    """How a kernel ended."""

    reason: ExitReason
    code: int | None = None
