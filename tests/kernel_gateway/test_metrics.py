"""What Prometheus is told by a real gateway."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.wire import until


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """Any gateway will do."""
    return started("process")


@pytest.fixture
def session(gateway: Gateway) -> str:
    """A name that would be seen."""
    return "a-name-that-is-nobodys-business"


def text(gateway: Gateway) -> str:
    """What `/metrics` says, which needs no key."""
    response = gateway.call("GET", "/metrics", tenant=None)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return response.text


def value(gateway: Gateway, name: str, **labels: str) -> float:
    """One sample; 0 when there is none yet."""
    samples = [sample for family in text_string_to_metric_families(text(gateway)) for sample in family.samples]
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), 0.0)


def test_no_tenant_and_no_session_is_named(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "secret_variable = 1")
    gateway.call("GET", f"/v1/sessions/{session}-absent")
    told = text(gateway)
    for word in (*KEYS, *KEYS.values(), session, "secret_variable"):
        assert word not in told


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("1", "ok", None),
        ("1/0", "error", None),
        ("while True: pass", "timeout", "SB005"),
        ("exit_now", "died", "SB010"),
    ],
)
def test_cells_are_counted_by_how_they_end(
    gateway: Gateway, session: str, code: str, status: str, error: str | None
) -> None:
    before = value(gateway, "kernel_gateway_executions_total", status=status)
    errors = value(gateway, "kernel_gateway_errors_total", code=error or "")
    ran = value(gateway, "kernel_gateway_execution_seconds_count")
    gateway.execute(session, code.replace("exit_now", "import os; os._exit(1)"), timeout=0.5)
    assert value(gateway, "kernel_gateway_executions_total", status=status) == before + 1
    assert value(gateway, "kernel_gateway_errors_total", code=error or "") == errors + (error is not None)
    assert value(gateway, "kernel_gateway_execution_seconds_count") == ran + 1


@pytest.mark.parametrize(("path", "code"), [("/v1/sessions/absent", "SB011"), ("/nowhere", "SB022")])
def test_refusals_are_counted_by_code(gateway: Gateway, path: str, code: str) -> None:
    before = value(gateway, "kernel_gateway_errors_total", code=code)
    gateway.call("GET", path)
    assert value(gateway, "kernel_gateway_errors_total", code=code) == before + 1


def test_sessions_and_warm_kernels_are_those_there_are(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "")
    idle = value(gateway, "kernel_gateway_sessions", state="idle")
    assert idle >= 1
    gateway.call("DELETE", f"/v1/sessions/{session}")
    assert value(gateway, "kernel_gateway_sessions", state="idle") == idle - 1
    until(lambda: value(gateway, "kernel_gateway_warm_kernels") in {1, 2})  # one of each language in use
    assert value(gateway, "kernel_gateway_ready") == 1


def test_as_many_series_whatever_clients_call_their_sessions(gateway: Gateway) -> None:
    def series() -> int:
        return sum(len(family.samples) for family in text_string_to_metric_families(text(gateway)))

    gateway.call("GET", "/v1/sessions/absent")
    before = series()
    for number in range(50):
        gateway.call("GET", f"/v1/sessions/absent-{number}")
    assert series() == before
