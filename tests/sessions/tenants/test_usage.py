"""Use of tenants: more use is refused while too much counts, and no longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.errors import QuotaExceeded
from sessions.tenants.usage import GRAINS, Allowance, Kind, Usage, Window
from tests.fakes import Clock

ALLOWANCE = Allowance(window=60, seconds=10, output=1000, upload=0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def usage(clock: Clock) -> Usage:
    return Usage(ALLOWANCE, clock)


def test_a_used_up_allowance_refuses_until_enough_use_is_forgotten(usage: Usage, clock: Clock) -> None:
    usage.add("acme", Kind.SECONDS, 6)
    usage.permit("acme", Kind.SECONDS)
    clock.passes(30)
    usage.add("acme", Kind.SECONDS, 6)
    with pytest.raises(QuotaExceeded, match="10 execution seconds per 60 s are used up") as refused:
        usage.permit("acme", Kind.SECONDS)
    retry_after = refused.value.details.pop("retry_after")
    assert refused.value.details == {"limit": "execution_seconds", "max": 10}
    assert 30 <= retry_after <= 32
    clock.passes(29)
    with pytest.raises(QuotaExceeded):
        usage.permit("acme", Kind.SECONDS)
    clock.passes(retry_after - 29)
    usage.permit("acme", Kind.SECONDS)


def test_tenants_and_kinds_do_not_share(usage: Usage) -> None:
    usage.add("acme", Kind.SECONDS, 100)
    usage.permit("umbrella", Kind.SECONDS)
    usage.permit("acme", Kind.OUTPUT)
    with pytest.raises(QuotaExceeded, match="seconds"):
        usage.permit("acme", Kind.OUTPUT, Kind.SECONDS)


def test_without_a_limit_nothing_is_counted(usage: Usage) -> None:
    usage.add("acme", Kind.UPLOAD, 10**12)
    usage.permit("acme", Kind.UPLOAD)
    assert not usage._windows


def test_use_before_a_restart_counts_for_the_rest_of_its_window(usage: Usage, clock: Clock) -> None:
    usage.add("acme", Kind.SECONDS, 50, ago=61)
    usage.permit("acme", Kind.SECONDS)
    usage.add("acme", Kind.SECONDS, 50, ago=40)
    with pytest.raises(QuotaExceeded) as refused:
        usage.permit("acme", Kind.SECONDS)
    assert 20 <= refused.value.details["retry_after"] <= 22
    clock.passes(22)
    usage.permit("acme", Kind.SECONDS)


def test_memory_does_not_grow_with_use() -> None:
    window = Window(60)
    for number in range(100_000):
        window.add(number / 100, 1)
        window.seconds_until_below(number / 100, 10)
    assert len(window._used) <= GRAINS + 2


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5)), max_size=50), st.floats(0, 100))
def test_nothing_is_forgotten_before_its_time_nor_much_later(uses: list[tuple[float, float]], rest: float) -> None:
    window, now, used = Window(60), 0.0, list[tuple[float, float]]()
    for pause, amount in uses:
        now += pause
        window.add(now, amount)
        used.append((now, amount))
    now += rest
    counted = sum(amount for at, amount in used if now - at <= 60)
    long_ago = sum(amount for at, amount in used if now - at <= 62)
    wait = window.seconds_until_below(now, 10)
    assert wait >= 0
    if counted >= 10.001:
        assert wait > 0
    if long_ago < 9.999:
        assert wait == 0
    assert window.seconds_until_below(now + wait + 0.001, 10) == 0
