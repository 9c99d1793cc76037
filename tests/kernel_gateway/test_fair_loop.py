"""Long work on the event loop is done in slices: others are served between them, and tenants take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import pairwise

import pytest

from kernel_gateway.fair_loop import FairLoop
from sessions.model.tasks import gather_all, spawn
from sessions.tenants.traffic import LoopTime


def work(name: str, done: list[str], values: int = 3) -> Iterator[bytes]:
    """Yield some values; note when each is made."""
    for _ in range(values):
        done.append(name)
        yield name.encode()


async def taken(slices: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in slices]


async def test_all_values_come_in_order() -> None:
    assert await taken(FairLoop(LoopTime()).iterate("acme", iter([b"a", b"b", b"c"]))) == [b"a", b"b", b"c"]


async def test_the_loop_serves_others_between_slices_for_as_long_as_a_slice_takes() -> None:
    served: list[float] = []

    async def others() -> None:
        while True:
            served.append(time.perf_counter())
            await asyncio.sleep(0)

    def slow() -> Iterator[bytes]:
        for _ in range(3):
            time.sleep(0.02)
            served.append(-1)
            yield b"x"

    other = spawn(others(), "others")
    await taken(FairLoop(LoopTime()).iterate("acme", slow()))
    other.cancel()
    ends = [number for number, when in enumerate(served) if when < 0]
    between = [served[end + 1 : after] for end, after in pairwise(ends)]
    assert all(times and times[-1] - times[0] > 0.01 for times in between)


async def test_tenants_take_turns_however_much_work_one_has() -> None:
    fair_loop, done = FairLoop(LoopTime()), list[str]()
    floods = [taken(fair_loop.iterate("flood", work("flood", done, 9))) for _ in range(5)]
    await gather_all(*floods, taken(fair_loop.iterate("acme", work("acme", done))))
    assert done.index("acme") < 9
    last = len(done) - done[::-1].index("acme")
    assert done[:last].count("flood") <= 9, "between two slices of acme there is one of the others"


async def test_work_that_fails_or_is_left_keeps_nobody_waiting() -> None:
    fair_loop = FairLoop(LoopTime())

    def fails() -> Iterator[bytes]:
        yield b"x"
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await taken(fair_loop.iterate("acme", fails()))
    async with aclosing(fair_loop.iterate("acme", iter([b"a", b"b"]))) as left:
        async for _ in left:
            break
    waiting = spawn(taken(fair_loop.iterate("acme", iter([b"a"] * 1000))), "cancelled")
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert await taken(fair_loop.iterate("acme", iter([b"a"]))) == [b"a"]
