"""What became of a promise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """Whether a promise is kept."""

    WORKS = "works"
    #: it works, and takes longer than it should
    SLOW = "slower than"
    REFUSED = "refused"
    #: it is not made here: the settings have turned it off, or it cannot be tried
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one promise."""

    name: str
    outcome: Outcome
    #: what was seen, or why it is not kept
    detail: str = ""
    seconds: float = 0.0
    #: seconds that it should take at most
    within: float = 0.0

    @property
    def tried_well(self) -> bool:
        """Whether it was tried and kept, so that others can build on it."""
        return self.outcome in {Outcome.WORKS, Outcome.SLOW}

    @property
    def broken(self) -> bool:
        """Whether something that is promised here does not work."""
        return self.outcome is Outcome.REFUSED

    def __str__(self) -> str:
        match self.outcome:
            case Outcome.WORKS:
                said = f"works, {self.seconds:.1f} s"
            case Outcome.SLOW:
                said = f"slower than {self.within:g} s: {self.seconds:.1f} s"
            case Outcome.REFUSED:
                return f"refused: {self.detail}"
            case Outcome.LEFT_OUT:
                return f"left out: {self.detail}"
        return f"{said}; {self.detail}" if self.detail else said
