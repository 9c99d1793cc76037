"""What a coroutine takes of the event loop is measured; what it waits is not."""

from __future__ import annotations

import asyncio
import time

import pytest

from kernel_gateway.http.metered import Metered
from sessions.model.tasks import spawn


def work_for(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_steps_count_and_waiting_does_not() -> None:
    async def two_steps() -> str:
        work_for(0.01)
        await asyncio.sleep(0.5)
        work_for(0.02)
        return "done"

    steps = list[float]()
    assert await spawn(Metered(two_steps(), steps.append), "two steps") == "done"
    assert 0.03 <= sum(steps) < 0.4


async def test_a_step_that_begins_with_a_cancellation_counts_too() -> None:
    async def cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            work_for(0.01)

    steps = list[float]()
    task = spawn(Metered(cancelled(), steps.append), "cancelled")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sum(steps) >= 0.01
