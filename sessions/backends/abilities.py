"""What not every backend can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a backend can do what not every backend can."""

    on: bool
    #: what it does, or why it does not
    detail: str
