"""How kernels end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

#: exit code of a launcher that has not found the kernel's program, as of a shell
NO_PROGRAM = 127
#: exit code of a launcher whose kernel was ended by a signal, without the signal's number
SIGNALLED = 128
#: what the signals of a processor's faults mean for code in a sandbox
_MEANING = {
    Signals.SIGBUS: ": memory that is a file is gone, or its file system is full (`/dev/shm`: setting `temporary`)",
    Signals.SIGSEGV: ": a fault in compiled code",
}


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

    @property
    def signal(self) -> Signals | None:
        """The signal that ended the kernel, or None."""
        known = {SIGNALLED + one: one for one in Signals}
        return known.get(self.code) if self.code is not None else None

    def __str__(self) -> str:
        """Say how the kernel ended."""
        if self.signal is not None:
            return f"The kernel was ended by the signal {self.signal.name}{_MEANING.get(self.signal, '')}"
        return "The kernel has ended" + (f" with exit code {self.code}" if self.code is not None else "")

    def at_start(self, language: str) -> str:
        """Return why a kernel of a language ended before it could be used."""
        if self.code == NO_PROGRAM:
            return f"the kernels' image has no {language}"
        return f"the kernel ended while it started (exit code {self.code})"
