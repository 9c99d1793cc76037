"""Abilities that not every backend has, and findings about a backend's requirements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a backend has an ability that not every backend has."""

    on: bool
    #: text for the operator: what the ability does, or why the backend does not have it
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one requirement of a backend."""

    name: str
    #: description of the problem. None means no problem.
    problem: str | None
    #: instruction to fix the problem
    fix: str = ""
    #: observed facts
    detail: str = ""
    #: whether this is no requirement but an ability that is off
    off: bool = False

    @classmethod
    def of(cls, name: str, ability: Ability) -> Self:
        """Return a finding about an ability. An ability that is off is no problem."""
        return cls(name, None, detail=f"{'on' if ability.on else 'off'}, {ability.detail}", off=not ability.on)

    @property
    def ok(self) -> bool:
        """Whether the requirement is met."""
        return self.problem is None
