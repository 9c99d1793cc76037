"""The event loop's time: a tenant whose kernels send very much waits while others use the loop, and only then."""

from __future__ import annotations

import pytest

from sessions.tenants.traffic import BURST, DEBT, RECENT, SHARE, LoopTime
from tests.fakes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop_time(clock: Clock) -> LoopTime:
    made = LoopTime(clock)
    made.spend("quiet", 0.001)
    return made


def test_a_tenant_within_its_burst_does_not_wait(loop_time: LoopTime) -> None:
    loop_time.spend("loud", BURST)
    assert loop_time.wait("loud") == 0


def test_a_tenant_beyond_its_burst_waits_until_its_share_has_grown(loop_time: LoopTime, clock: Clock) -> None:
    loop_time.spend("loud", BURST + 0.01)
    assert loop_time.wait("loud") == pytest.approx(0.01 / SHARE)
    clock.now += 0.01 / SHARE
    assert loop_time.wait("loud") == pytest.approx(0)


def test_over_time_a_tenant_gets_its_share_of_the_loop(loop_time: LoopTime, clock: Clock) -> None:
    taken, batch = 0.0, 0.01
    loop_time.spend("loud", BURST)
    began = clock.now
    while clock.now < began + 10:
        loop_time.spend("quiet", 0.0)
        if wait := loop_time.wait("loud"):
            clock.now += max(wait, 1e-6)
        else:
            loop_time.spend("loud", batch)
            taken += batch
            clock.now += batch
    assert taken == pytest.approx(10 * SHARE, rel=0.02)


def test_nobody_else_waits_for_a_tenant_that_is_loud(loop_time: LoopTime) -> None:
    loop_time.spend("loud", 10)
    assert loop_time.wait("quiet") == loop_time.wait("new") == 0


def test_a_tenant_that_is_alone_does_not_wait(loop_time: LoopTime, clock: Clock) -> None:
    clock.now += RECENT
    loop_time.spend("loud", 10)
    assert loop_time.wait("loud") == 0
    loop_time.spend("quiet", 0.001)
    assert loop_time.wait("loud") == pytest.approx(DEBT / SHARE)  # not longer, however much it took while alone


def test_two_loud_tenants_each_have_their_share(loop_time: LoopTime) -> None:
    for tenant in ("loud", "also loud"):
        loop_time.spend(tenant, BURST + 0.01)
    assert loop_time.wait("loud") == loop_time.wait("also loud") > 0


def test_tenants_that_were_quiet_for_long_are_forgotten(loop_time: LoopTime, clock: Clock) -> None:
    for number in range(100):
        clock.now += BURST / SHARE + RECENT
        loop_time.spend(f"tenant {number}", 10)
    assert len(loop_time._accounts) <= 2
