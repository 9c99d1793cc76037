"""Fixtures: a gateway that is sent random input, and the session of another tenant that must not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.vitals import faults
from tests.gateways import Gateway, gateway

#: session of the tenant who sends the input
FUZZED = "fuzzed"
SINGS = "x = 'the canary sings'"


@pytest.fixture(scope="session")
def serving() -> Iterator[Gateway]:
    """A gateway with plain processes: its wire is that of every gateway."""
    with gateway(
        "process",
        max_concurrent_per_tenant="4",
        max_sessions_per_tenant="12",
        execute_timeout="5",
        max_execute_timeout="5",
        idle_timeout="3600",
    ) as started:
        yield started


@pytest.fixture
def fuzzed(serving: Gateway) -> Iterator[Gateway]:
    """The gateway; after the test it has failed in no request, and the canary of another tenant is alive."""
    serving.execute("canary", SINGS, tenant="bob")
    serving.execute(FUZZED, "pass")
    before = serving.log.stat().st_size
    yield serving
    with serving.log.open("rb") as log:
        log.seek(before)
        assert faults(log.read().decode()) == []
    canary = serving.execute("canary", "print(x)", tenant="bob")
    assert (canary["state"], canary["outputs"][0]["text"]) == ("preserved", "the canary sings\n")
    for session in serving.call("GET", "/v1/sessions").json()["sessions"]:
        serving.call("DELETE", f"/v1/sessions/{session['name']}")
