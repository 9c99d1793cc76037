"""The notice about the variables that the next execution of a session reports."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sessions.models import StateChange

#: what a client is told whose kernel was continued with from disk
CUT = "its connections to other hosts were cut"


@dataclass(frozen=True, slots=True)
class StateNotice:
    """The state of the variables when a client's cell begins."""

    change: StateChange = StateChange.NEW
    #: why the variables are not preserved
    reason: str | None = None
    #: number of kernels that the session has had
    incarnation: int = 1

    @property
    def loss(self) -> str | None:
        """Why the variables are lost; None: they are not."""
        return self.reason if self.change is StateChange.LOST else None

    @property
    def replaced(self) -> str | None:
        """Why the variables are not those of the earlier cells; None: they are, or there were no earlier ones."""
        return None if self.change in {StateChange.NEW, StateChange.PRESERVED} else self.reason

    def noting(self, what: str) -> StateNotice:
        """Return the notice with something that has happened meanwhile, unless the variables are not preserved."""
        return replace(self, reason=what) if self.change is StateChange.PRESERVED else self

    def cut(self) -> StateNotice:
        """Return the notice with the end of the connections to other hosts, whatever else has happened."""
        told = [each for each in (self.reason, CUT) if each]
        return self if CUT in (self.reason or "") else replace(self, reason="; ".join(told))
