"""`make test-engine`: runs the engine's tests against the engine that is there, and writes what came of it.

The line goes into the table of the operators' guide. `--from REPORT …` takes the reports of runs that were made already
(pytest's `--junitxml`), for engines that are tested in parts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sessions.backends.docker.engine.versions import versions
from sessions.model.errors import SessionError

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/operating.md"
#: stands in the guide after the last line of the table
END = "<!-- /tested -->"
RUNTIME = "runsc"
#: the gate's tests that need an engine, each told with the part that is done; those of compose and of a fresh machine
#: bring other engines or tools
USUAL = ["-v", "-m", "engine and gate and not browser", "--ignore=tests/test_compose.py", "--ignore=tests/engine"]


@dataclass(frozen=True)
class Counts:
    """How many tests ended in which way."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def counts(reports: Iterable[Path]) -> Counts:
    """Return the counts of all reports together.

    A report has one entry for each run of a test, and another for a failed clean-up. Together they count as one test.
    """
    total = Counts()
    for report in reports:
        entries: dict[tuple[str, str], set[str]] = {}
        for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest has written it
            name = case.get("classname", ""), case.get("name", "")
            entries.setdefault(name, set()).update(outcome.tag for outcome in case)
        for outcomes in entries.values():
            failed = not outcomes.isdisjoint({"failure", "error"})
            skipped = not failed and "skipped" in outcomes
            total += Counts(int(not failed and not skipped), int(failed), int(skipped))
    return total


def line(found: Mapping[str, str], day: dt.date, tests: str, total: Counts) -> str:
    """Return a line of the table."""
    cells = [str(day), *found.values(), tests, *map(str, (total.passed, total.failed, total.skipped))]
    return f"| {' | '.join(cells)} |"


def add(guide: Path, row: str) -> None:
    """Add a line at the end of the table.

    Raises:
        ValueError: when there is no table.
    """
    before, end, after = guide.read_text().partition(END)
    if not end:
        raise ValueError(f"{guide} has no table of tested versions")
    guide.write_text(f"{before}{row}\n{end}{after}")


def main(arguments: list[str]) -> int:
    """Run the tests unless there are reports, and write the line.

    Returns:
        0 if no test has failed.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--from", dest="reports", nargs="+", type=Path, metavar="REPORT", help="reports of earlier runs"
    )
    parser.add_argument("--tests", default="engine tests of the gate", help="what the table calls these tests")
    given, further = parser.parse_known_args(arguments)
    try:
        found = versions(RUNTIME)
    except SessionError as error:
        print(f"no engine to test: {error.message}")
        return 1
    with tempfile.TemporaryDirectory() as directory:
        reports = given.reports
        if reports is None:
            reports = [Path(directory, "report.xml")]
            print(", ".join(f"{name} {version}" for name, version in found.items()), flush=True)
            command = [sys.executable, "-m", "pytest", f"--junitxml={reports[0]}", *USUAL, *further]
            subprocess.run(command, cwd=ROOT, check=False)
        total = counts(report for report in reports if report.exists())
    if total == Counts() or not total.passed + total.failed:
        print("no test was run, so nothing is written")
        return 1
    row = line(found, dt.datetime.now(dt.UTC).date(), given.tests, total)
    add(GUIDE, row)
    print(row)
    return int(total.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
