"""How kernels end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: exit code of a launcher that has not found the kernel's program, as of a shell
NO_PROGRAM = 127


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

    def at_start(self, language: str) -> str:
        """Return why a kernel of a language ended before it could be used."""
        if self.code == NO_PROGRAM:
            return f"the kernels' image has no {language}"
        return f"the kernel ended while it started (exit code {self.code})"
