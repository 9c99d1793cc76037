"""The soak's verdict. Pure: readings in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, linear_regression

from tests.soak.gauges import Reading

#: growth over the second half that is still flat: a share of the mean, and as much again in the gauge's unit
FLAT = {"memory": (0.05, 8.0), "descriptors": (0.10, 16.0), "threads": (0.10, 4.0), "tasks": (0.10, 16.0)}
#: what must be as at the start when everything has ended
RETURNS = ("containers", "volumes", "mounts", "shims", "images", "leftovers")


def growth(values: Sequence[float]) -> float:
    """Return by how much a line fitted to the values grows from the first to the last."""
    if len(values) < 2:
        return 0.0
    return linear_regression(range(len(values)), values).slope * (len(values) - 1)


def findings(start: Reading, minutes: Sequence[Reading], end: Reading) -> Iterator[str]:
    """Yield what is not flat over the second half, and what did not return to its number at the start."""
    half = minutes[len(minutes) // 2 :]
    for name, (share, more) in FLAT.items():
        values = [float(getattr(reading, name)) for reading in half]
        if values and (grown := growth(values)) > (most := share * fmean(values) + more):
            yield f"{name} grew by {grown:.1f} over the second half; {most:.1f} is flat"
    for name in RETURNS:
        before, after = getattr(start, name), getattr(end, name)
        if after > before:
            yield f"{name}: {before} at the start, {after} at the end"
