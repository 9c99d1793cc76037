"""Refusals of keys are spread over time, so that guesses take no time from other clients."""

from __future__ import annotations

import pytest

from kernel_gateway.identity.refusals import BURST, LONGEST, RATE, RefusalPace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_some_refusals_come_at_once_and_the_others_in_turn() -> None:
    clock = Clock()
    pace = RefusalPace(clock)
    clock.now += 60
    pauses = [pace.pause() for _ in range(BURST + 4)]
    assert pauses[: BURST + 1] == [pytest.approx(0.0)] * (BURST + 1)
    assert pauses[BURST + 1 :] == [pytest.approx(number / RATE) for number in (1, 2, 3)]
    clock.now += 60
    assert pace.pause() == 0.0


def test_no_refusal_waits_for_ever_and_a_later_one_does_not_pay_for_the_flood() -> None:
    clock = Clock()
    pace = RefusalPace(clock)
    assert max(pace.pause() for _ in range(100_000)) == LONGEST
    clock.now += LONGEST + 2 / RATE
    assert pace.pause() == 0.0
