"""A kernel's clock: what is due while it stands still comes after it goes on, and not earlier or twice."""

from __future__ import annotations

import asyncio

import pytest

from sessions.kernels.clock import KernelClock


async def test_a_timer_is_due_only_after_its_time_without_the_freezes() -> None:
    clock, struck = KernelClock(), []
    loop = asyncio.get_running_loop()
    begun = loop.time()
    clock.call_later(0.1, lambda: struck.append(clock.time()))
    before = clock.time()
    for _ in range(2):
        clock.freeze()
        stands = clock.time()
        await asyncio.sleep(0.15)
        assert (struck, clock.time()) == ([], stands)
        clock.thaw()
    while not struck:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert loop.time() - begun > 0.4 - 0.01
    assert 0.1 - 0.01 < struck[0] - before < 0.3  # and 0.3 s stood still
    await asyncio.sleep(0.1)
    assert len(struck) == 1


async def test_a_timer_that_is_cancelled_during_a_freeze_never_comes() -> None:
    clock, struck = KernelClock(), []
    timer = clock.call_later(0.0, lambda: struck.append(1))
    clock.freeze()
    await asyncio.sleep(0.05)
    timer.cancel()
    clock.thaw()
    await asyncio.sleep(0.05)
    assert struck == []


async def test_a_bound_of_time_holds_in_the_kernels_time() -> None:
    clock = KernelClock()
    with pytest.raises(TimeoutError):
        async with clock.timeout(0.01):
            await asyncio.sleep(60)
    async with clock.timeout(0.05):
        clock.freeze()
        await asyncio.sleep(0.1)
        clock.thaw()
    await asyncio.sleep(0.1)  # and nothing comes later
