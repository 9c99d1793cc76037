"""The Markdown of `make bench`: the plot, one table for each part, and when, where and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sessions.model.stopwatch import Stage
from tests.benchmarks.crowd import ALONE, CLIENTS
from tests.benchmarks.figures import percentile
from tests.benchmarks.first import COLD
from tests.benchmarks.inside import PLAIN
from tests.benchmarks.results import Figures, Part, Results, Ways
from tests.benchmarks.returns import RESTORED
from tests.benchmarks.ways import CODE, LINES, ON_OURS, ON_STOCK, REST

#: the page with the tables, and the plot beside it
PAGE = "docs/benchmarks.md"
PLOT = "docs/latency.svg"
#: what stands where there is no figure
NOTHING = "-"

#: shows a way's figures, beside all ways of its isolation
Cell = Callable[[Figures, Ways], str]
#: makes one number of many values
Summary = Callable[[list[float]], float]


# -- cells of a table ------------------------------------------------------------------------------------------


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return percentile(values, 0.95)


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return percentile(values, 0.99)


def value(name: str, made: Summary = median, unit: float = 1e3, digits: int = 0) -> Cell:
    """Return a function that shows one figure.

    Args:
        name: name of the measurement.
        made: makes one number of its values.
        unit: factor from the values to what is shown, for example from seconds to milliseconds.
        digits: digits behind the point.
    """

    def show(figures: Figures, _ways: Ways) -> str:
        return f"{made(figures[name]) * unit:,.{digits}f}" if figures.get(name) else NOTHING

    return show


def compared(name: str, base: str, made: Summary = median, *, difference: bool = False) -> Cell:
    """Return a function that shows a figure's ratio to that of another way, or the difference in milliseconds."""

    def show(figures: Figures, ways: Ways) -> str:
        other = ways.get(base)
        if not isinstance(other, dict) or not other.get(name) or not figures.get(name):
            return NOTHING
        mine, its = made(figures[name]), made(other[name])
        return f"{(mine - its) * 1e3:+.0f}" if difference else f"{mine / its:.2f}"

    return show


def within(name: str, base: str, made: Summary = median) -> Cell:
    """Return a function that shows the ratio of a way's figure to another one of the same way."""

    def show(figures: Figures, _ways: Ways) -> str:
        if not figures.get(name) or not figures.get(base):
            return NOTHING
        return f"{made(figures[name]) / made(figures[base]):.1f}"

    return show


def both(first: Cell, second: Cell, form: str = "{} ({})") -> Cell:
    """Return a function that shows two figures in one cell."""

    def show(figures: Figures, ways: Ways) -> str:
        shown = first(figures, ways), second(figures, ways)
        return form.format(*shown) if NOTHING not in shown else shown[0]

    return show


def spread(name: str, unit: float = 1e3, digits: int = 0) -> Cell:
    """Return a function that shows the median and the 95th percentile."""
    return both(value(name, median, unit, digits), value(name, p95, unit, digits), "{} / {}")


def to_base(name: str, base: str) -> Cell:
    """Return a function that shows milliseconds, and in brackets the ratio to another way."""
    return both(value(name), compared(name, base))


# -- tables ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """How the figures of one part are shown."""

    #: what stands above the table
    about: str
    #: what is counted, and the measurement whose values are counted
    counted: dict[str, str]
    columns: dict[str, Cell]

    def lines(self, part: Part | None) -> Iterator[str]:
        """Yield the lines of the table; ways that were not measured say why.

        Args:
            part: what was measured; None: it was not.
        """
        found = {} if part is None else {isolation: _ways(ways) for isolation, ways in part.found.items()}
        counts = ", ".join(f"{_count(found, name)} {what}" for what, name in self.counted.items())
        yield f"{self.about} Medians of {counts} each.\n"
        yield _line(["", "", *self.columns])
        yield "|---" * (len(self.columns) + 2) + "|"
        for isolation, ways in found.items():
            for way, figures in ways.items():
                if isinstance(figures, str):
                    cells = [f"not measured: {figures}", *[""] * (len(self.columns) - 1)]
                else:
                    cells = [show(figures, ways) for show in self.columns.values()]
                yield _line([isolation, way, *cells])
        if not found:
            yield _line(["", "", "not measured", *[""] * (len(self.columns) - 1)])
        yield ""


def _ways(ways: Ways | str) -> Ways:
    return {"": ways} if isinstance(ways, str) else ways


def _count(found: dict[str, Ways], name: str) -> str:
    """Return the number of values of a measurement: one for all ways, or the least and the most."""
    measured = [figures for ways in found.values() for figures in ways.values() if isinstance(figures, dict)]
    counts = {len(figures[name]) for figures in measured if name in figures} or {0}
    return f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in (cell.replace("|", "/") for cell in cells)) + "|"


TABLES = {
    "ways": Table(
        "**A cell**, over every way to a kernel. In brackets: to a raw client on our kernel, after a rest to one on a "
        "stock ipykernel.",
        {"cells": "cell", "large outputs": "text"},
        {
            f"`{CODE}` p50, ms": value("cell", digits=2),
            "p99, ms": value("cell", p99, digits=1),
            "p50 to raw, stock": compared("cell", ON_STOCK),
            "to raw, ours": compared("cell", ON_OURS),
            f"after {REST:.0f} s of rest, ms": to_base("rested", ON_STOCK),
            f"{LINES:,} lines, ms": to_base("lines", ON_OURS),
            "10 MB of text": to_base("text", ON_OURS),
            "5 MB picture": to_base("picture", ON_OURS),
        },
    ),
    "first": Table(
        "**The first cells of a new session** over HTTP, each from its request to its answer. In brackets: to a cold "
        "start.",
        {"sessions": "result"},
        {
            "first result, ms": to_base("result", COLD),
            "p99": value("result", p99),
            "then pandas and a plot": to_base("plot", COLD),
            "the plot again": value("plot again"),
            "then a fit of sklearn": to_base("fit", COLD),
            "an idle session, MiB": value("MiB", unit=1),
        },
    ),
    "returns": Table(
        "**Where the time goes** until a session has its kernel, over HTTP, in milliseconds: each from its request to "
        "the first result, and the gateway's stages. In brackets: to a restored start.",
        {"returns": "whole"},
        {
            "to the first result": to_base("whole", RESTORED),
            "p95": value("whole", p95),
            **{stage.value: value(stage.value) for stage in Stage},
            "first result": value("result"),
        },
    ),
    "inside": Table(
        "**What user code costs in gVisor**: ordinary cells, beside the same cells in a plain container, which is no "
        "sandbox. Their kernels take the time, so it has nothing of HTTP and messages.",
        {"runs": "runsc"},
        {
            "in a plain container, ms": value(PLAIN, digits=1),
            "in gVisor, ms": value("runsc", digits=1),
            "ratio": within("runsc", PLAIN),
        },
    ),
    "throughput": Table(
        f"**Executions per second** of `{CODE}` over HTTP. Each session has a client, which runs on the same "
        "processors.",
        {"runs": "per second"},
        {
            "per second": value("per second", unit=1),
            "p50 / p95, ms": spread("cell", digits=1),
            "processor time of the gateway per execute, ms": value("gateway", digits=2),
        },
    ),
    "density": Table(
        "**Sessions that are alive at the same time.** Each cell checks what the session's earlier cells have left. "
        "Kernels are started cold, with 256 MiB and nothing of `preload`.",
        {"cells of one client": "cell"},
        {
            "started at once: all ready after, s": value("all ready", unit=1, digits=1),
            "each p50 / p95, s": spread("start", unit=1, digits=1),
            "a cell, one client, p50 / p95, ms": spread("cell"),
            "p95 beyond one session's, ms": compared("cell", ALONE, p95, difference=True),
            f"{CLIENTS} clients at a time, p50 / p95, ms": spread("crowd"),
            "cells": value("cells", sum, unit=1),
            "failed": value("failed", sum, unit=1),
            "an idle session, MiB": value("MiB", unit=1),
            "all that are idle, % of a processor": value("idle", unit=100, digits=1),
        },
    ),
}


def markdown(results: Results) -> str:
    """Return everything that stands between the marks of the page."""
    lines = [f"![Latency of `{CODE}` by way and isolation]({Path(PLOT).name})\n"] if "ways" in results.parts else []
    for name, table in TABLES.items():
        lines += table.lines(results.parts.get(name))
    dates = sorted({part.date for part in results.parts.values()})
    lines.append(f"{', '.join(dates)}, `make bench`. {results.machine}; {results.versions}.")
    return "\n".join(lines)
