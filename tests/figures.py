"""Seconds and bytes that tests measure, each held against an expectation from a control of the same run.

Durations depend on the machine and its other work. So no bound is a number of seconds or bytes: a test measures an
ordinary operation, its control, derives an expectation from it, and fails at three times the expectation. Values that
do not depend on the machine need no control: a timeout that is set, the size of sent data. The report ends with all
figures. While other workers run tests, no figure is checked, because their work would change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

#: multiple of the expectation at which a test fails
FAILS_AT = 3.0
UNITS = {"s": 1.0, "MiB": 1024.0**2}


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    what: str
    value: float
    expected: float
    unit: str

    @property
    def ratio(self) -> float:
        """Ratio to the expectation; below 1 is better."""
        return self.value / self.expected


@dataclass
class Figures:
    """All figures of one run."""

    #: whether the tests run alone, without other workers
    alone: bool = True

    _noted: dict[str, list[Figure]] = field(default_factory=dict)

    def hold(self, what: str, value: float, expected: float | Callable[[], float], unit: str = "s") -> None:
        """Record a figure, and fail if it is three times the expectation.

        Args:
            what: name in the report, where equal names share a line.
            value: measured value, in seconds or bytes.
            expected: expectation from a control of the same run, in the same unit; or a function that measures it.
            unit: unit in the report, `s` or `MiB`.
        """
        if not self.alone:
            return
        figure = Figure(what, value, expected() if callable(expected) else expected, unit)
        self._noted.setdefault(what, []).append(figure)
        assert figure.ratio < FAILS_AT, f"{what}: {_shown(value, unit)}, expected {_shown(figure.expected, unit)}"

    def table(self) -> Iterator[str]:
        """Yield a line for each name: the number of measurements, and the worst of them."""
        width = max(map(len, self._noted), default=0)
        for what, figures in sorted(self._noted.items()):
            worst = max(figures, key=lambda figure: figure.ratio)
            value, expected = (_shown(number, worst.unit) for number in (worst.value, worst.expected))
            yield f"{what:{width}}  {len(figures):4} x  worst {value:>9}  expected {expected:>9}  {worst.ratio:5.2f}"


def _shown(value: float, unit: str) -> str:
    return f"{value / UNITS[unit]:.3g} {unit}"


#: the figures of this process's run
FIGURES = Figures()
hold = FIGURES.hold
