"""The notice about the variables that the next execution of a session reports."""

from __future__ import annotations

from dataclasses import dataclass

from sessions.models import StateChange


@dataclass(frozen=True, slots=True)
class StateNotice:
    """The state of the variables when a client's cell begins."""

    change: StateChange = StateChange.PRESERVED
    #: why the variables are not preserved
    reason: str | None = None
    #: number of kernels that the session has had
    incarnation: int = 1
