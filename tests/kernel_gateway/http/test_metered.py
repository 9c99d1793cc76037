"""What a coroutine takes of the event loop is measured; what it waits is not."""

from __future__ import annotations

import asyncio

import pytest

from kernel_gateway.http.metered import Metered
from sessions.model.tasks import spawn
from tests.fakes import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    return clock


async def test_steps_count_and_waiting_does_not(clock: Clock) -> None:
    goes_on = asyncio.Event()

    async def two_steps() -> str:
        clock.passes(1)
        await goes_on.wait()
        clock.passes(2)
        return "done"

    steps = list[float]()
    task = spawn(Metered(two_steps(), steps.append), "two steps")
    await asyncio.sleep(0)
    clock.passes(60)
    goes_on.set()
    assert await task == "done"
    assert steps == [1, 2]


async def test_a_step_that_begins_with_a_cancellation_counts_too(clock: Clock) -> None:
    async def cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            clock.passes(3)

    steps = list[float]()
    task = spawn(Metered(cancelled(), steps.append), "cancelled")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == [0, 3]
