"""The alerts that the gateway finds itself are those that Prometheus finds, in the same cases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.samples import Sample

from kernel_gateway.observe.alert_conditions import WINDOW, select
from kernel_gateway.observe.alerts import ALERTS, AlertWatch
from tests.fakes import Clock

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "monitoring/alerts.yml").read_text())["tests"]
#: what only Prometheus can find
UNSEEN = {"KernelGatewayDown"}
OWN_JOB = "kernel-gateway"


def values(series: str) -> Iterator[float | None]:
    """Yield the values of a series in the notation of `promtool test rules`; None where there is none."""
    for part in series.split():
        if part in {"_", "stale"}:
            yield None
        elif found := re.fullmatch(r"_x(\d+)", part):
            yield from [None] * int(found[1])
        elif found := re.fullmatch(r"([\d.]+|Inf)(?:\+([\d.]+))?x(\d+)", part):
            yield from (float(found[1]) + float(found[2] or 0) * number for number in range(int(found[3]) + 1))
        else:
            yield float(part)


def samples(case: dict[str, Any], at: int) -> list[Metric]:
    """Return the metrics of a case after so many of its intervals."""
    metric = Metric("any", "", "untyped")
    for series in case["input_series"]:
        name, labels = series["series"].partition("{")[0], dict(re.findall(r'(\w+)="([^"]*)"', series["series"]))
        value = [*values(series["values"]), *[None] * at][at]
        if labels.pop("job", OWN_JOB) == OWN_JOB and value is not None:
            metric.samples.append(Sample(name, labels, value))
    return [metric]


@pytest.mark.parametrize("case", CASES, ids=lambda case: re.sub(r"\W", "-", case["name"]))
def test_the_gateway_finds_what_prometheus_finds(case: dict[str, Any]) -> None:
    clock, minutes = Clock(), int(case["interval"].removesuffix("m"))
    (expected,) = case["promql_expr_test"]
    last = int(expected["eval_time"].removesuffix("m")) // minutes
    at = 0
    watch = AlertWatch(lambda: samples(case, at), clock)
    for at in range(last + 1):
        watch.look()
        clock.now += minutes * 60 if at < last else 0
    named = {re.findall('alertname="(.*?)"', each["labels"])[0] for each in expected["exp_samples"]}
    assert {alert.name for alert, _ in watch.firing()} == named - UNSEEN


def test_there_are_cases_of_both_kinds() -> None:
    assert {bool(case["promql_expr_test"][0]["exp_samples"]) for case in CASES} == {True, False}
    assert [*values("1x2 0+5x1 _ _x2 stale 7 Inf+0x0")] == [1, 1, 1, 0, 5, None, None, None, None, 7, float("inf")]


def test_the_names_of_alerts_are_unique() -> None:
    names = [alert.name for group in ALERTS.values() for alert in group]
    assert len(names) == len(set(names))


def test_an_alert_says_since_when_its_condition_is_met() -> None:
    registry, clock = CollectorRegistry(), Clock()
    ready = Gauge("kernel_gateway_ready", "", registry=registry)
    watch = AlertWatch(lambda: [*registry.collect()], clock)
    assert watch.firing() == []
    for _ in range(4):
        watch.look()
        clock.now += 60
    assert [(alert.name, seconds) for alert, seconds in watch.firing()] == [("KernelGatewayNotReady", 240)]
    ready.set(1)
    watch.look()
    assert watch.firing() == []
    ready.set(0)
    watch.look()
    assert watch.firing() == [], "the minutes begin anew"


def test_what_was_counted_long_ago_is_forgotten() -> None:
    registry, clock = CollectorRegistry(), Clock()
    failures = Counter("kernel_gateway_audit_failures", "", registry=registry)
    Gauge("kernel_gateway_ready", "", registry=registry).set(1)
    watch = AlertWatch(lambda: [*registry.collect()], clock)
    watch.look()
    failures.inc()
    clock.now += 60
    watch.look()
    assert [alert.name for alert, _ in watch.firing()] == ["KernelGatewayAuditFails"]
    clock.now += WINDOW * 60 + 1
    watch.look()
    assert watch.firing() == []


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("a", {1, 2}),
        ('a{x="1"}', {1}),
        ('a{x!="1"}', {2}),
        ('a{x=~"2|3"}', {2}),
        ('a{x="1",y="q"}', set()),
        ("b", set()),
    ],
)
def test_a_selector_selects_as_in_promql(selector: str, selected: set[float]) -> None:
    given = [Sample("a", {"x": "1", "y": "p"}, 1), Sample("a", {"x": "2", "y": "q"}, 2), Sample("ab", {}, 3)]
    assert set(select(selector, given).values()) == selected
