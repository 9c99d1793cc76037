"""The line that `make test-engine` writes."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import tested
from tests.engine.tested import Counts

TESTS = """
import pytest

def test_well(): pass

def test_bad(): assert False

@pytest.fixture
def breaks():
    yield
    raise OSError

def test_bad_at_its_end(breaks): assert False

def test_well_until_its_end(breaks): pass

@pytest.mark.skip
def test_skipped(): pass

runs = []

@pytest.mark.flaky(reruns=2)
def test_well_when_it_runs_again():
    runs.append(1)
    assert len(runs) > 2

@pytest.mark.flaky(reruns=2)
def test_bad_each_time(): assert False
"""


@pytest.mark.parametrize("workers", [[], ["--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder"]])
def test_the_counts_of_real_reports_add_up(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run([*command, *workers, "test_some.py"], cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert tested.counts([report]) == Counts(passed=2, failed=4, skipped=1)
    assert tested.counts([report, report]) == Counts(4, 8, 2)


def test_the_line_stands_at_the_end_of_the_table(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(f"| a |\n{tested.END}\n\nmore\n")
    row = tested.line({"Linux": "6", "Docker": "28"}, dt.date(2026, 11, 27), "all", Counts(3, 1, 2))
    tested.add(guide, row)
    assert guide.read_text() == f"| a |\n| 2026-11-27 | 6 | 28 | all | 3 | 1 | 2 |\n{tested.END}\n\nmore\n"
    guide.write_text("no table")
    with pytest.raises(ValueError, match="no table"):
        tested.add(guide, row)


def test_the_guide_has_the_table_with_a_column_for_each_value() -> None:
    before, end, _ = tested.GUIDE.read_text().partition(tested.END)
    assert end
    table = [row for row in before.rpartition("<!-- tested -->")[2].splitlines() if row.startswith("|")]
    versions = dict.fromkeys(("Linux", "Docker", "containerd", tested.RUNTIME), "1")
    row = tested.line(versions, dt.date(2026, 11, 27), "all", Counts())
    assert {each.count("|") for each in table} == {row.count("|")}
