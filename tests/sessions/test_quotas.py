"""Per-tenant admission: it counts right whichever way a cell ends, and one tenant is not another's problem."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.errors import QuotaExceeded
from sessions.quotas import Quotas, TenantLimits


@pytest.fixture
def quotas() -> Quotas:
    return Quotas(TenantLimits(sessions=2, executions=2))


def test_a_tenant_may_have_so_many_sessions(quotas: Quotas) -> None:
    quotas.admit_session(0)
    quotas.admit_session(1)


@pytest.mark.parametrize("present", [2, 3])
def test_and_not_one_more(quotas: Quotas, present: int) -> None:
    with pytest.raises(QuotaExceeded, match="at most 2 sessions") as refused:
        quotas.admit_session(present)
    assert refused.value.details == {"limit": "sessions", "max": 2}


def test_a_tenant_may_have_so_many_executions(quotas: Quotas) -> None:
    with quotas.execution("acme"), quotas.execution("acme"):
        with pytest.raises(QuotaExceeded, match="at most 2 executions") as refused, quotas.execution("acme"):
            pass
        assert refused.value.details == {"limit": "executions", "max": 2, "retry_after": 1}


def test_an_execution_that_ends_makes_room(quotas: Quotas) -> None:
    for _ in range(10):
        with quotas.execution("acme"), quotas.execution("acme"):
            pass


def test_one_that_fails_makes_room_too(quotas: Quotas) -> None:
    for _ in range(10):
        with pytest.raises(ZeroDivisionError), quotas.execution("acme"):
            raise ZeroDivisionError


def test_a_refused_one_takes_no_room(quotas: Quotas) -> None:
    with quotas.execution("acme"):
        with quotas.execution("acme"):
            for _ in range(10):
                with pytest.raises(QuotaExceeded), quotas.execution("acme"):
                    pass
        with quotas.execution("acme"):
            pass


def test_tenants_do_not_share(quotas: Quotas) -> None:
    with quotas.execution("acme"), quotas.execution("acme"), quotas.execution("umbrella"):
        pass


def test_who_runs_nothing_is_not_remembered(quotas: Quotas) -> None:
    for number in range(100):
        with quotas.execution(f"tenant-{number}"):
            pass
    assert not quotas._executions


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_no_order_of_events_lets_more_in_or_keeps_anybody_out(events: list[tuple[str, bool]]) -> None:
    quotas = Quotas(TenantLimits(executions=2))
    running: dict[str, list[ExitStack]] = {tenant: [] for tenant in "abc"}
    for tenant, begins in events:
        if not begins:
            if running[tenant]:
                running[tenant].pop().close()
            continue
        one = ExitStack()
        try:
            one.enter_context(quotas.execution(tenant))
            running[tenant].append(one)
        except QuotaExceeded:
            assert len(running[tenant]) == 2
        assert len(running[tenant]) <= 2
