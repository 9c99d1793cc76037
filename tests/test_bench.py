"""What `make bench` makes of its figures: tables, the plot, and their places in the pages."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree as ET

import docker
import pytest
from docker.errors import DockerException
from prometheus_client import CollectorRegistry, generate_latest

from kernel_gateway.observe.pool_metrics import PoolMetrics
from sessions.model.stopwatch import Operation, Stage
from tests.benchmarks import __main__ as bench
from tests.benchmarks import crowd, first, inside, report, returns
from tests.benchmarks.figures import engine, hindrance, rounds
from tests.benchmarks.plot import PAPER, draw
from tests.benchmarks.results import Figures, Part, Results, Ways
from tests.benchmarks.serving import ISOLATIONS
from tests.benchmarks.ways import ON_OURS, ON_STOCK
from tests.gateways import Gateway
from tests.readme import ROOT

#: seconds of a hundred cells: p50 2 ms, p95 4 ms, p99 9 ms
CELL = [0.002] * 94 + [0.004] * 5 + [0.009]
WAYS: Ways = {
    ON_STOCK: {"cell": [0.004] * 100, "rested": [0.01], "lines": [0.2], "text": [0.1], "picture": [0.1]},
    ON_OURS: {"cell": CELL, "rested": [0.005], "lines": [0.1], "text": [0.05], "picture": [0.05]},
    "jupyter_kernel_gateway, our kernel": "it cannot be installed here",
}
FIRST: Ways = {
    "cold": {"result": [1.4], "plot": [1.0], "plot again": [0.2], "fit": [2.0], "MiB": [51.0]},
    "restored from a checkpoint": "no checkpoints: `checkpoints` is off",
    "from the pool": {"result": [0.035], "plot": [0.25], "plot again": [0.2], "fit": [0.1], "MiB": [180.0]},
}
THROUGHPUT: Ways = {"1 session": {"per second": [120.0, 130.0], "cell": CELL, "gateway": [0.0011, 0.0013]}}
DENSITY: Ways = {
    "1 session": {"cell": CELL, "cells": [1, 200], "failed": [0, 0], "start": [1.2], "all ready": [1.3], "MiB": [50.0]},
    "100 sessions": {
        "cell": [0.03] * 1000,
        "crowd": [0.09] * 1000,
        "cells": [80, 1000, 1000],
        "failed": [0, 1],
        "start": [10.0] * 80,
        "all ready": [60.0],
        "MiB": [52.0] * 100,
        "idle": [0.125],
    },
}
RETURNS: Ways = {
    returns.RESTORED: {"whole": [1.0, 1.2, 1.1], "create": [0.01], "run": [0.4], "result": [0.04]},
    "a branch": {"whole": [1.21], "create": [0.02], "run": [0.5], "result": [0.05]},
}
INSIDE: Ways = {
    "a loop": {inside.PLAIN: [0.01, 0.03, 0.02], "runsc": [0.05, 0.03, 0.03]},
    "a walk": {inside.PLAIN: [0.1], "runsc": [2.0]},
}
RESULTS = Results(
    "2 x processor",
    "Python 3.11",
    {
        "ways": Part("2026-11-25", {"process": WAYS, "runsc": "no Docker engine answers"}),
        "first": Part("2026-11-25", {"runsc": FIRST}),
        "returns": Part("2026-11-25", {"runsc": RETURNS}),
        "inside": Part("2026-11-25", {"runsc": INSIDE}),
        "throughput": Part("2026-11-24", {"process": THROUGHPUT}),
        "density": Part("2026-11-25", {"runsc": DENSITY}),
    },
)


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the cells of all rows by isolation and way; those of the last table with such a row."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {(row[0], row[1]): row[2:] for row in found}


def test_a_cells_row_has_percentiles_and_ratios() -> None:
    row = rows(report.markdown(RESULTS))["process", ON_OURS]
    assert row == ["2.00", "9.0", "0.50", "1.00", "5 (0.50)", "100 (1.00)", "50 (1.00)", "50 (1.00)"]


def test_a_first_cells_row_is_compared_with_a_cold_start() -> None:
    row = rows(report.markdown(RESULTS))["runsc", "from the pool"]
    assert row == ["35 (0.03)", "35", "250 (0.25)", "200", "100 (0.05)", "180"]


def test_the_row_of_a_branch_has_its_stages_and_is_compared_with_a_restored_start() -> None:
    found = rows(report.markdown(RESULTS))["runsc", "a branch"]
    assert found[:2] == ["1,210 (1.10)", "1,210"]
    assert found[2:] == ["-", "-", "-", "-", "20", "-", "500", "-", "-", "50"]


def test_a_cell_in_gvisor_is_compared_with_the_same_cell_in_a_plain_container() -> None:
    found = rows(report.markdown(RESULTS))
    assert found["runsc", "a loop"] == ["20.0", "30.0", "1.5"]
    assert found["runsc", "a walk"] == ["100.0", "2,000.0", "20.0"]


def test_the_stages_of_a_branch_are_what_its_metrics_have_grown_by(tmp_path: Path) -> None:
    scraped = Scraped()
    found: dict[Operation, Figures] = defaultdict(lambda: defaultdict(list))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(returns, "REST", 0.0)
        returns.note(cast("Gateway", scraped), found, Operation.BRANCH, scraped.branch)
    figures = found[Operation.BRANCH]
    assert figures["create"] == pytest.approx([0.25])
    assert figures["run"] == [0.0]
    assert figures["whole"][0] == pytest.approx(figures["create"][0] + figures["result"][0])
    results = Results(parts={"returns": Part("", {"runsc": {"a branch": figures}})})
    results.write(tmp_path / "kept.json")
    assert Results.read(tmp_path / "kept.json") == results


class Scraped:
    """A gateway of which only `/metrics` is asked, as its service makes them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._metrics = PoolMetrics(self._registry)
        self._metrics.stages(Operation.WAKE, {Stage.CREATE: 5.0})
        self.branch()

    def branch(self) -> None:
        self._metrics.stages(Operation.BRANCH, {Stage.CREATE: 0.25})

    def call(self, method: str, path: str, *, tenant: None) -> SimpleNamespace:
        assert (method, path, tenant) == ("GET", "/metrics", None)
        return SimpleNamespace(text=generate_latest(self._registry).decode())


def test_executions_per_second_have_their_latency_and_the_gateways_processor_time() -> None:
    assert rows(report.markdown(RESULTS))["process", "1 session"] == ["125", "2.0 / 4.0", "1.20"]


def test_sessions_side_by_side_are_compared_with_one_and_their_failures_counted() -> None:
    found = rows(report.markdown(RESULTS))
    row = found["runsc", "100 sessions"]
    assert row == ["60.0", "10.0 / 10.0", "30 / 30", "+26", "90 / 90", "2,080", "1", "52", "12.5"]
    assert found["runsc", "1 session"][-1] == report.NOTHING


def test_what_could_not_be_measured_says_why() -> None:
    found = rows(report.markdown(RESULTS))
    assert found["process", "jupyter_kernel_gateway, our kernel"][0] == "not measured: it cannot be installed here"
    assert found["runsc", "restored from a checkpoint"][0] == "not measured: no checkpoints: `checkpoints` is off"
    assert found["runsc", ""][0] == "not measured: no Docker engine answers"
    assert report.markdown(Results()).count("not measured") == len(report.TABLES)


def test_all_rows_of_a_table_have_as_many_cells() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", report.markdown(RESULTS), re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_the_text_says_when_and_where_and_how_it_was_measured() -> None:
    text = report.markdown(RESULTS)
    assert text.endswith("\n2026-11-24, 2026-11-25, `make bench`. 2 x processor; Python 3.11.")
    assert "Medians of 100 cells, 1 large outputs each." in text
    assert f"]({Path(report.PLOT).name})" in text


def test_every_part_has_a_table() -> None:
    assert list(bench.measurements(())) == list(report.TABLES)


def test_results_are_kept_between_runs(tmp_path: Path) -> None:
    RESULTS.write(tmp_path / "kept.json")
    assert Results.read(tmp_path / "kept.json") == RESULTS
    assert Results.read(tmp_path / "absent.json") == Results()


def test_the_plot_shows_every_way_on_paper_of_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (one, two):
        draw(RESULTS.parts["ways"], path)
    assert one.read_bytes() == two.read_bytes()  # a new run changes only what it has measured
    picture = ET.fromstring(one.read_text())  # noqa: S314 - our own file
    texts = [text for node in picture.findall(".//{*}text") if (text := "".join(node.itertext()).strip())]
    assert {f"{way} · process" for way in WAYS} <= set(texts)
    assert texts.count("not measured") == 2
    assert {"4.0", "2.0"} <= set(texts)
    assert any(text.startswith("1+1, milliseconds") for text in texts)
    [paper] = [node for node in picture.findall(".//{*}g") if node.get("id") == "patch_1"]
    assert f"fill: {PAPER}" in str(paper[0].get("style"))


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with copies of the pages that are written."""
    (tmp_path / "docs").mkdir()
    for page in ("README.md", report.PAGE):
        (tmp_path / page).write_text((ROOT / page).read_text())
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    return tmp_path


def test_the_results_stand_between_the_marks_of_their_page(pages: Path) -> None:
    page = (ROOT / report.PAGE).read_text()
    before, after = page.split("<!-- bench -->")[0], page.split("<!-- /bench -->")[1]
    bench.write(RESULTS)
    written = (pages / report.PAGE).read_text()
    assert written == f"{before}<!-- bench -->\n\n{report.markdown(RESULTS)}\n\n<!-- /bench -->{after}"
    assert (pages / report.PLOT).exists()


def test_the_readme_has_some_figures_of_that_page(pages: Path) -> None:
    bench.write(RESULTS)
    written = (pages / "README.md").read_text()
    before, after = (ROOT / "README.md").read_text().split("<!-- figures -->")[0], written.split("<!-- /figures -->")[1]
    assert written.startswith(before)
    assert after == (ROOT / "README.md").read_text().split("<!-- /figures -->")[1]
    assert "| first result of a new session from the pool, ms (to a cold start) | 35 (0.03) |" in written
    assert "| 100 idle sessions: MiB of each · % of a processor for all | 52 · 12.5 |" in written


def test_a_part_alone_is_written_without_a_plot(pages: Path) -> None:
    bench.write(Results(parts={"first": RESULTS.parts["first"]}))
    assert Path(report.PLOT).name not in (pages / report.PAGE).read_text()
    assert not (pages / report.PLOT).exists()


# -- a run -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of results, which begins empty, of a machine that can run all but `runc`."""
    monkeypatch.setattr(bench, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(bench, "machine", lambda: "this machine")
    monkeypatch.setattr(bench, "engine", lambda: "Docker 1")
    monkeypatch.setattr(bench, "hindrance", lambda isolation, _image: "no runc" if isolation == "runc" else "")
    return tmp_path / "kept.json"


def measured_as(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all measurements by one that finds this."""
    stub = bench.Measurement(lambda _isolation, _most, _limit: ways, 1, 1.0)
    monkeypatch.setattr(bench, "measurements", lambda _sessions: dict.fromkeys(report.TABLES, stub))


def arguments(part: list[str] | None = None, isolation: list[str] | None = None) -> argparse.Namespace:
    return argparse.Namespace(part=part, isolation=isolation, rounds=None, sessions=[1])


def test_one_part_is_measured_again_and_the_rest_is_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_as({"way": {"cell": [1.0]}}, monkeypatch)
    whole, failed = bench.run(arguments())
    assert failed == []
    assert [*whole.parts["ways"].found] == list(ISOLATIONS)
    assert whole.parts["ways"].found["runc"] == "no runc"
    measured_as({"way": {"cell": [2.0]}}, monkeypatch)
    second, _ = bench.run(arguments(["first"], ["process"]))
    assert second.parts["first"].found["process"] == {"way": {"cell": [2.0]}}
    assert second.parts["first"].found["runsc"] == second.parts["ways"].found["process"] == {"way": {"cell": [1.0]}}
    assert Results.read(kept) == second


def test_results_of_another_machine_are_forgotten(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Results("another machine", "", RESULTS.parts).write(kept)
    measured_as({"way": {"cell": [1.0]}}, monkeypatch)
    results, _ = bench.run(arguments(["first"]))
    assert (results.machine, [*results.parts]) == ("this machine", ["first"])


def test_a_measurement_that_fails_is_named_and_ends_no_other(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(isolation: str, _most: int, _limit: float) -> Ways:
        assert isolation != "process"
        return {}

    stub = bench.Measurement(fail, 1, 1.0)
    monkeypatch.setattr(bench, "measurements", lambda _sessions: {"ways": stub})
    results, failed = bench.run(arguments())
    assert failed == ["--part ways --isolation process"]
    assert results.parts["ways"].found == {
        "process": "it failed with AssertionError",
        "runc": "no runc",
        "runsc": {},
    }


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_part_finds_the_figures_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BUSY": (1, 2), "BUSY_SECONDS": 0.2, "SETTLE": 0.0, "IDLE": 0.1}.items():
        monkeypatch.setattr(crowd, name, value)
    found: dict[str, Ways] = {
        "first": first.measure("process", 1, 0.0),
        "throughput": crowd.throughput("process", 1, 0.0),
        "density": crowd.density("process", (1, 2), 1, 0.0),
    }
    text = report.markdown(Results(parts={name: Part("", {"process": ways}) for name, ways in found.items()}))
    assert text.count("not measured") == 3  # `ways` needs another gateway; `returns` and `inside` need gVisor
    # A process has no control group, so its memory and the processor time of idle ones are missing.
    assert rows(text)["process", "from the pool"].count(report.NOTHING) == 1
    assert rows(text)["process", "2 sessions"].count(report.NOTHING) == 2


def test_rounds_end_when_the_time_is_used_up_but_one_is_always_run() -> None:
    assert list(rounds("three", 3, 60.0)) == [0, 1, 2]
    assert list(rounds("none in time", 3, -1.0)) == [0]


def test_processes_can_be_measured_everywhere_and_an_absent_runtime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise DockerException

    monkeypatch.setattr(docker, "from_env", absent)
    assert hindrance("process", "image") == ""
    assert engine() == "no Docker engine"
    assert hindrance("runsc", "image") == "no Docker engine answers"
