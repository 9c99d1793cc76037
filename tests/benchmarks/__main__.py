"""Measures what `docs/benchmarks.md` shows, and with `--write` puts it there: tables, plot, and figures of the README.

    make bench                                                # everything, in about twenty minutes
    make bench FLAGS='--part first --isolation runsc'         # this anew; the rest is that of the last run
    .venv/bin/python -m tests.benchmarks --rounds 2 --sessions 3 6   # small, to try a change; nothing is written

Ways take turns on one machine: read the ratios. Everything is kept in `.bench.json` as soon as it is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from tests.benchmarks import crowd, execute, first, inside, returns
from tests.benchmarks.figures import engine, hindrance, machine, say, versions
from tests.benchmarks.plot import draw
from tests.benchmarks.report import PAGE, PLOT, markdown
from tests.benchmarks.results import Part, Results, Ways
from tests.benchmarks.serving import IMAGE, ISOLATIONS
from tests.readme import ROOT, figures, with_part

KEPT = ROOT / ".bench.json"
#: minutes that everything takes
ABOUT = 20


@dataclass(frozen=True)
class Measurement:
    """How one part is measured."""

    #: measures under an isolation, at most so many rounds, and begins none after so many seconds
    measure: Callable[[str, int, float], Ways]
    rounds: int
    seconds: float
    isolations: tuple[str, ...] = ISOLATIONS


def measurements(sessions: tuple[int, ...]) -> dict[str, Measurement]:
    """Return all parts, in order.

    Args:
        sessions: how many live side by side, ascending.
    """
    return {
        "ways": Measurement(lambda *how: asyncio.run(execute.measure(*how)), 15, 60),
        "first": Measurement(first.measure, 7, 60),
        "returns": Measurement(returns.measure, 7, 150, ("runsc",)),
        "inside": Measurement(inside.measure, 7, 120, ("runsc",)),
        "throughput": Measurement(crowd.throughput, 2, 30),
        "density": Measurement(
            lambda isolation, most, limit: crowd.density(isolation, sessions, most, limit), 10, 60, ("runsc",)
        ),
    }


def measured(measurement: Measurement, isolation: str, rounds: int | None) -> tuple[Ways | str, bool]:
    """Return what was found, or the reason why not, and whether something failed."""
    if reason := hindrance(isolation, IMAGE):
        return reason, False
    try:
        return measurement.measure(isolation, rounds or measurement.rounds, measurement.seconds), False
    except Exception as error:  # noqa: BLE001 - it is shown and makes this run fail, at its end: the rest took minutes
        traceback.print_exc()
        return f"it failed with {type(error).__name__}", True


def run(arguments: argparse.Namespace) -> tuple[Results, list[str]]:
    """Measure what is asked for.

    Returns:
        all results, with those of an earlier run in place of what was not measured, and the names of what failed.
    """
    begun, failed = time.monotonic(), []
    everything = not (arguments.part or arguments.isolation)
    results = Results() if everything else Results.read(KEPT)
    if results.machine != machine():
        results = Results(machine())
    results.versions = f"{versions('ipykernel', 'jupyter_client', 'pyzmq', 'tornado')}, {engine()}"
    for name, isolation, measurement in wanted(arguments):
        say(f"== {name}, {isolation}: {(time.monotonic() - begun) / 60:.1f} minutes of about {ABOUT} for everything")
        part = results.parts.setdefault(name, Part(""))
        part.date = str(dt.datetime.now(dt.UTC).date())
        part.found[isolation], broke = measured(measurement, isolation, arguments.rounds)
        part.found = {each: part.found[each] for each in ISOLATIONS if each in part.found}
        failed += [f"--part {name} --isolation {isolation}"] * broke
        results.write(KEPT)
    return results, failed


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Measurement]]:
    """Yield part and isolation of each measurement that is asked for."""
    for name, measurement in measurements(tuple(arguments.sessions)).items():
        for isolation in measurement.isolations:
            if name in (arguments.part or [name]) and isolation in (arguments.isolation or [isolation]):
                yield name, isolation, measurement


def write(results: Results) -> None:
    """Write tables and plot into their page, and some figures into the README."""
    page, readme = ROOT / PAGE, ROOT / "README.md"
    page.write_text(with_part(page.read_text(), "bench", f"\n{markdown(results)}\n"))
    readme.write_text(with_part(readme.read_text(), "figures", figures(page.read_text())))
    if ways := results.parts.get("ways"):
        draw(ways, ROOT / PLOT)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=measurements(()), help="only this; may be repeated")
    parser.add_argument("--isolation", action="append", choices=ISOLATIONS, help="only this; may be repeated")
    parser.add_argument("--rounds", type=int, help="at most so many rounds of each measurement")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 20, 100], help="how many live side by side")
    parser.add_argument("--write", action="store_true", help="put tables and plot into their page, if nothing failed")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    results, failed = run(arguments)
    print(markdown(results))
    if failed:
        raise SystemExit("\n".join(["failed, and nothing is written; measure again with", *failed]))
    if arguments.write:
        write(results)


if __name__ == "__main__":
    main()
