"""Seconds and bytes that tests measure, each held against what a control of the same run lets expect.

How long something takes depends on the machine and on what else it does. So no bound is a number of seconds or bytes:
a test measures something ordinary, its control, says what it expects beside that, and fails at three times as much.
What depends on no machine needs no control: a time-out that is set, the size of what was sent. The report ends with all
figures. Beside other workers' tests nothing is held: their work would be in each figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

#: a test fails when it measures this many times what it expects
FAILS_AT = 3.0
UNITS = {"s": 1.0, "MiB": 1024.0**2}


@dataclass(frozen=True)
class Figure:
    """What was measured once."""

    what: str
    value: float
    expected: float
    unit: str

    @property
    def ratio(self) -> float:
        """To what was expected; below 1 is better."""
        return self.value / self.expected


@dataclass
class Figures:
    """Those of one run."""

    #: whether nothing else runs beside the tests
    alone: bool = True

    _noted: dict[str, list[Figure]] = field(default_factory=dict)

    def hold(self, what: str, value: float, expected: float | Callable[[], float], unit: str = "s") -> None:
        """Note a figure, and fail if it is three times what is expected.

        Args:
            what: names it in the report, where equal names share a line.
            value: what was measured, in seconds or bytes.
            expected: what a control of the same run lets expect, in the same; or what measures it if that takes time.
            unit: for the report, `s` or `MiB`.
        """
        if not self.alone:
            return
        figure = Figure(what, value, expected() if callable(expected) else expected, unit)
        self._noted.setdefault(what, []).append(figure)
        assert figure.ratio < FAILS_AT, f"{what}: {_shown(value, unit)}, expected {_shown(figure.expected, unit)}"

    def table(self) -> Iterator[str]:
        """A line for each kind of figure: how often it was measured, and the worst of them."""
        width = max(map(len, self._noted), default=0)
        for what, figures in sorted(self._noted.items()):
            worst = max(figures, key=lambda figure: figure.ratio)
            value, expected = (_shown(number, worst.unit) for number in (worst.value, worst.expected))
            yield f"{what:{width}}  {len(figures):4} x  worst {value:>9}  expected {expected:>9}  {worst.ratio:5.2f}"


def _shown(value: float, unit: str) -> str:
    return f"{value / UNITS[unit]:.3g} {unit}"


#: of this process's run
FIGURES = Figures()
hold = FIGURES.hold
