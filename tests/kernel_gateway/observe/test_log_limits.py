"""The rate of log lines of one kind."""

from __future__ import annotations

import logging

import pytest
import structlog
from structlog.testing import capture_logs

from kernel_gateway.observe.log_limits import LEFT_OUT, MOST, MOST_OF_TENANT, WINDOW, LineLimit
from tests.gateways import Gateway, gateway
from tests.kernel_gateway.calls import metric, until


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> LineLimit:
    return LineLimit(clock)


def written(limit: LineLimit, count: int, **fields: object) -> int:
    """Log lines, and return how many are written."""
    lines = 0
    for number in range(count):
        try:
            limit(None, "info", {"event": "request", "level": "info", "number": number} | fields)
            lines += 1
        except structlog.DropEvent:
            pass
    return lines


def test_lines_of_one_kind_are_limited_and_the_rest_is_counted(limit: LineLimit, clock: Clock) -> None:
    assert written(limit, MOST + 7, status=401) == MOST
    assert written(limit, 1, status=404) == 1
    assert written(limit, MOST_OF_TENANT + 1, status=200, tenant="acme") == MOST_OF_TENANT
    assert written(limit, 1, status=200, tenant="other") == 1
    assert limit.left_out == 8
    clock.now = WINDOW
    with capture_logs() as logs:
        assert written(limit, 1, status=401) == 1
    told = {"event": LEFT_OUT, "seconds": WINDOW, "log_level": "warning", "of_event": "request", "of_level": "info"}
    assert logs == [
        told | {"lines": 7, "of_status": 401},
        told | {"lines": 1, "of_status": 200, "of_tenant": "acme"},
    ]
    clock.now *= 3
    with capture_logs() as logs:
        assert written(limit, 1, status=401) == 1
    assert logs == []


def test_lines_of_other_libraries_are_limited_by_their_place_in_the_code(limit: LineLimit) -> None:
    def record(line: int) -> logging.LogRecord:
        return logging.LogRecord("tornado.general", logging.ERROR, "iostream.py", line, "%s", (line,), None)

    assert sum(limit.filter(record(1)) for _ in range(MOST + 5)) == MOST
    assert limit.filter(record(2))


def test_refused_requests_fill_no_log() -> None:
    with gateway("process") as serving:
        for _ in range(3 * MOST):
            assert serving.call("GET", "/v1/sessions", tenant=None).status_code == 401
        until(lambda: refusals(serving) + left_out(serving) == 3 * MOST)
        assert left_out(serving) > 0
        assert serving.call("GET", "/v1/sessions").status_code == 200  # the control: other lines are written
        until(lambda: [line for line in serving.logged() if line.get("tenant") == "alice"])


def refusals(serving: Gateway) -> int:
    return sum(line["event"] == "request" and line["status"] == 401 for line in serving.logged())


def left_out(serving: Gateway) -> float:
    return metric(serving, "kernel_gateway_log_lines_left_out")
