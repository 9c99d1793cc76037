"""The plot of `make bench`: the latency of a small cell, by way and isolation, as an SVG."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tests.benchmarks.figures import percentile
from tests.benchmarks.results import Part, Ways
from tests.benchmarks.ways import CODE

#: by the beginning of a way's name: clients without a gateway, another gateway; and everything of ours
COLOURS = {"raw client": "#6e7781", "jupyter_kernel_gateway": "#bc4c00", "": "#0969da"}
#: The background is part of the picture, so that it is legible on pages of any colour.
PAPER, INK = "#ffffff", "#1f2328"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text, and not outlines: small, and it can be searched
    "svg.hashsalt": CODE,  # else each run would name the same shapes otherwise
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
#: inches
WIDTH, ROW, MARGIN = 9.0, 0.27, 0.55


def rows(part: Part) -> list[tuple[str, str, list[float] | str]]:
    """Return isolation, way, and the seconds of all cells, or why there are none, from top to bottom."""
    found = []
    for isolation, ways in part.found.items():
        listed: Ways = {"": ways} if isinstance(ways, str) else ways
        found += [(isolation, way, known if isinstance(known, str) else known["cell"]) for way, known in listed.items()]
    return found


def draw(part: Part, path: Path) -> None:
    """Draw the median of each way as a dot, and a line to its 99th percentile.

    Args:
        part: what the part `ways` has measured.
        path: file of the SVG.
    """
    shown = rows(part)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, ROW * len(shown) + 2 * MARGIN), facecolor=PAPER, layout="constrained")
        axes = figure.add_subplot(facecolor=PAPER)
        axes.set_xscale("log")
        for number, (_, way, seconds) in enumerate(shown):
            if isinstance(seconds, str):
                axes.text(
                    0.01, number, "not measured", transform=axes.get_yaxis_transform(), va="center", style="italic"
                )
                continue
            colour = next(colour for begins, colour in COLOURS.items() if way.startswith(begins))
            p50, p99 = median(seconds) * 1e3, percentile(seconds, 0.99) * 1e3
            axes.plot([p50, p99], [number, number], color=colour, linewidth=2.5, alpha=0.45)
            axes.plot([p50], [number], "o", color=colour, markersize=6)
            axes.annotate(f"{p50:.1f}", (p50, number), (-6, 0), textcoords="offset points", va="center", ha="right")
        axes.set_yticks(
            range(len(shown)), [f"{way} · {isolation}" if way else isolation for isolation, way, _ in shown]
        )
        axes.set_ylim(len(shown) - 0.4, -0.6)
        for number in range(1, len(shown)):
            if shown[number][0] != shown[number - 1][0]:
                axes.axhline(number - 0.5, color=INK, linewidth=0.6)
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:g}"))
        axes.grid(axis="x", which="both", color=INK, alpha=0.12)
        axes.set_xlabel(f"{CODE}, milliseconds: p50 (dot) to p99 (logarithmic)")
        axes.set_ylabel("way to the kernel · isolation")
        figure.savefig(path, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
