"""The alerts fire as described, and the alerts and the dashboard use only metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest

import kernel_gateway
from kernel_gateway.observe.metrics import Metrics

MONITORING = Path(kernel_gateway.__file__).parent / "monitoring"
PAGE = (MONITORING.parents[1] / "docs/monitoring.md").read_text()
RULES = (MONITORING / "alerts.yml").read_text()
CASES = (Path(__file__).parent / "alerts.yml").read_text()
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
ALERTS = re.findall(r"- alert: (\w+)", RULES)


def expressions() -> list[str]:
    """Return all queries of the dashboard, as Grafana would send them."""
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [query.replace("$__rate_interval", "5m").replace("$instance", ".*") for query in queries]


def exposed() -> set[str]:
    """Return the names of all samples that a gateway may send."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    types = re.findall(r"^# TYPE (\w+) (\w+)$", generate_latest(Metrics().registry).decode(), re.MULTILINE)
    return {name.removesuffix("_total") + suffix for name, kind in types for suffix in suffixes[kind]}


def named(text: str) -> set[str]:
    """Return the metrics that a text names."""
    return set(re.findall(r"\b(?:kernel_gateway|process)_\w+", text))


# -- names -----------------------------------------------------------------------------------------------------


def test_the_names_of_metrics_are_found() -> None:
    assert {"kernel_gateway_executions_total", "kernel_gateway_loop_lag_seconds_bucket"} <= exposed()
    assert {"kernel_gateway_state_disk_bytes", "process_open_fds"} <= named(RULES)
    assert named("rate(kernel_gateway_absent_total[5m])") - exposed() == {"kernel_gateway_absent_total"}


def test_the_times_of_first_counts_are_not_exposed() -> None:
    metrics = Metrics()
    metrics.failed("SB001")
    assert "_created" not in generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("text", [RULES, CASES, " ".join(expressions())], ids=["alerts", "their tests", "dashboard"])
def test_each_metric_that_is_named_exists(text: str) -> None:
    assert named(text) - exposed() == set()


def test_the_page_names_exactly_the_metrics_that_exist() -> None:
    named_there = named(PAGE)
    assert {name for name in named_there if not any(name in sample for sample in exposed())} == set()
    own = {name for name in exposed() if name.startswith("kernel_gateway_") and not name.endswith(("_sum", "_count"))}
    assert {name.removesuffix("_bucket") for name in own} - named_there == set()


def test_the_dashboard_can_be_imported() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) > 10
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in DASHBOARD["panels"])
    assert DASHBOARD["uid"]
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD["panels"]))
    assert set(sources) == {"${datasource}"}  # chosen on import, not the source of the machine that made the dashboard


def test_no_panel_overlaps_another() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places
        assert at["x"] + at["w"] <= 24
        places |= cells


# -- promtool --------------------------------------------------------------------------------------------------


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool from the folder where setup.sh installs it, or from /usr/local/bin or /usr/bin."""
    program = shutil.which("promtool", path="/usr/local/lib/kernel-gateway:/usr/local/bin:/usr/bin")
    assert program is not None, "no promtool: `make promtool`"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.promtool
def test_prometheus_accepts_the_configuration_of_the_page(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(example)
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    ended = promtool("check", "config", tmp_path / "prometheus.yml")
    assert (ended.returncode, f"{len(ALERTS)} rules found" in ended.stdout) == (0, True), ended.stdout + ended.stderr


@pytest.mark.promtool
def test_the_rules_are_valid() -> None:
    ended = promtool("check", "rules", MONITORING / "alerts.yml")
    assert (ended.returncode, f"{len(ALERTS)} rules found" in ended.stdout) == (0, True), ended.stdout + ended.stderr


@pytest.mark.promtool
def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    def checked(queries: list[str]) -> bool:
        rules = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(queries)]
        (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        return bool(promtool("check", "rules", tmp_path / "rules.yml").returncode == 0)

    assert checked(expressions())
    assert not checked([*expressions(), "sum by (le) (rate(x_bucket))"])


@pytest.mark.promtool
def test_the_alerts_fire_when_they_should_and_not_otherwise() -> None:
    ended = promtool("test", "rules", Path(__file__).parent / "alerts.yml")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.promtool
def test_an_alert_that_never_fires_is_noticed(tmp_path: Path) -> None:
    patient = re.sub(r"^ +for: .*\n", "", RULES, flags=re.MULTILINE).replace("labels: {", "for: 1h\n        labels: {")
    (tmp_path / "rules.yml").write_text(patient)
    (tmp_path / "cases.yml").write_text(re.sub(r"rule_files: .*", "rule_files: [rules.yml]", CASES))
    ended = promtool("test", "rules", tmp_path / "cases.yml")
    assert ended.returncode == 1
    missed = set(re.findall(r'alertname="(\w+)"', ended.stdout + ended.stderr))
    assert missed == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_firing_and_a_silent_case_with_its_metrics(alert: str) -> None:
    looks_at = named(RULES.split(f"- alert: {alert}\n")[1].split("for:")[0].split("labels:")[0]) or {"up"}
    cases = [case.split("\n  - name: ")[0] for case in CASES.split("- name: ") if case.startswith(f"{alert} ")]
    assert {case.split("\n")[0].split(" #")[0] for case in cases} == {f"{alert} fires", f"{alert} is silent"}
    for case in cases:
        assert looks_at <= set(re.findall(r"\b[a-z_]+\b", case))
        assert ("*silent" in case or "exp_samples: []" in case) == (" is silent" in case.split("\n")[0])


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_says_what_it_is_and_what_to_do(alert: str) -> None:
    text = RULES.split(f"- alert: {alert}\n")[1].split("- alert:")[0]
    assert re.search(r"severity: (critical|warning)", text)
    assert re.search(r"summary: \S+", text)
    assert re.search(r"action: \S+", text)
