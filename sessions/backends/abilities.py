"""What not every backend can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a backend can do what not every backend can."""

    on: bool
    #: what it does, or why it does not
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one requirement of a backend."""

    name: str
    #: description of the problem; None: no problem
    problem: str | None
    #: instruction to fix the problem
    fix: str = ""
    #: observed facts
    detail: str = ""
    #: True: no requirement, but an ability that kernels do not have here
    off: bool = False

    @classmethod
    def of(cls, name: str, ability: Ability) -> Self:
        """Return the state of an ability, which is no requirement."""
        return cls(name, None, detail=f"{'on' if ability.on else 'off'}, {ability.detail}", off=not ability.on)

    @property
    def ok(self) -> bool:
        """True if the requirement is met."""
        return self.problem is None
