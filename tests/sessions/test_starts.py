"""Turns for starting kernels: bounded, first come first served, and nothing is lost when somebody leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sessions import starts as module
from sessions.backends.base import Launch
from sessions.errors import NotInitialized, SessionClosed, StartFailed
from sessions.sandbox import NO_KERNEL
from sessions.starts import Turns
from sessions.tasks import spawn
from tests.fakes import PYTHON, FakeBackend, until, world_over


class Queue:
    """People who take turns, one after the other or several at a time."""

    def __init__(self, at_once: int) -> None:
        self.turns = Turns(at_once)
        self.order: list[str] = []
        self.most = 0
        self._now = 0
        self.gates: dict[str, asyncio.Event] = {}

    async def come(self, name: str, *, ahead: bool = False) -> asyncio.Task[None]:
        """Somebody comes, and has a turn until their gate is opened."""
        self.gates[name] = asyncio.Event()
        task = spawn(self._stay(name, ahead=ahead), name)
        await asyncio.sleep(0)
        return task

    async def _stay(self, name: str, *, ahead: bool) -> None:
        async with self.turns.turn(ahead=ahead):
            self.order.append(name)
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                await self.gates[name].wait()
            finally:
                self._now -= 1

    async def go(self, *names: str) -> None:
        """They leave, each when their turn has come."""
        for name in names:
            await until(lambda name=name: name in self.order)  # type: ignore[misc]
            self.gates[name].set()
        await asyncio.sleep(0)


@asynccontextmanager
async def queue(at_once: int) -> AsyncIterator[Queue]:
    """A queue in which all turns are free in the end."""
    queue = Queue(at_once)
    yield queue
    assert queue.turns.waiting == 0
    async with asyncio.timeout(60):
        for _ in range(at_once):
            await queue.turns.turn().__aenter__()


async def test_so_many_at_a_time_first_come_first_served() -> None:
    async with queue(2) as people:
        tasks = [await people.come(name) for name in "abcdef"]
        assert people.order == ["a", "b"]
        assert people.turns.waiting == 4
        await people.go(*"abcdef")
        await asyncio.gather(*tasks)
        assert people.order == list("abcdef")
        assert people.most == 2


async def test_what_is_only_kept_warm_comes_last() -> None:
    async with queue(1) as people:
        tasks = [await people.come("a")]
        tasks += [await people.come(name, ahead=True) for name in ("warm 1", "warm 2")]
        tasks += [await people.come(name) for name in "bc"]
        assert people.turns.waiting == 2
        await people.go("a", "b", "c", "warm 1", "warm 2")
        await asyncio.gather(*tasks)
        assert people.order == ["a", "b", "c", "warm 1", "warm 2"]


async def test_who_waits_may_leave() -> None:
    async with queue(1) as people:
        first, second, third = [await people.come(name) for name in "abc"]
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert people.turns.waiting == 1
        await people.go("a", "c")
        await asyncio.gather(first, third)
        assert people.order == ["a", "c"]


async def test_who_leaves_at_the_moment_of_their_turn_passes_it_on() -> None:
    async with queue(1) as people:
        async with people.turns.turn():
            first, second = [await people.come(name) for name in "ab"]
        first.cancel()  # whose turn it is, and who does not know yet
        await people.go("b")
        await second
        assert people.order == ["b"]
        assert first.cancelled()


async def test_who_fails_passes_the_turn_on() -> None:
    async with queue(1) as people:
        with pytest.raises(ZeroDivisionError):
            async with people.turns.turn():
                raise ZeroDivisionError
        task = await people.come("a")
        await people.go("a")
        await task


async def test_nobody_waits_for_ever_but_what_is_kept_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_MAX", 0.02)
    async with queue(1) as people:
        first = await people.come("a")
        patient = await people.come("warm", ahead=True)
        late = await people.come("b")
        with pytest.raises(StartFailed, match="too many kernels are being started"):
            await late
        await people.go("a", "warm")
        await asyncio.gather(first, patient)
        assert people.order == ["a", "warm"]


# -- starting --------------------------------------------------------------------------------------------------


async def test_a_hundred_sessions_at_once_are_started_a_few_at_a_time(backend: FakeBackend) -> None:
    async with world_over(backend, starts=3) as world:
        backend.gate.clear()
        coming = asyncio.gather(*(world.starts.kernel(Launch(PYTHON)) for _ in range(20)))
        await until(lambda: world.starts.waiting == 17)
        assert backend.asked == 3
        backend.gate.set()
        kernels = await coming
        assert len(world.seen.starts) == 20
        for kernel in kernels:
            await kernel.kill(SessionClosed())
            await world.pool.delete_workspace(str(kernel.launch.workspace))


async def test_places_without_a_kernel_take_turns_too(backend: FakeBackend) -> None:
    async with world_over(backend, starts=1) as world:
        backend.gate.clear()
        coming = asyncio.gather(*(world.pool.hold(Launch(NO_KERNEL, workspace=name)) for name in "ab"))
        await until(lambda: world.starts.waiting == 1)
        backend.gate.set()
        for handle, name in zip(await coming, "ab", strict=True):
            await handle.kill()
            await world.pool.delete_workspace(name)
        assert [ready for _, ready in world.seen.starts] == [None, None]


async def test_who_waits_is_told_at_once_when_nothing_can_be_started_any_more(backend: FakeBackend) -> None:
    async with world_over(backend, starts=1) as world:
        backend.gate.clear()
        coming = [spawn(world.starts.kernel(Launch(PYTHON)), "start") for _ in range(4)]
        await until(lambda: world.starts.waiting == 3)
        backend.unprepared = backend.refuses = NotInitialized("no runsc")
        await world.readiness.check()
        backend.gate.set()
        outcomes = await asyncio.gather(*coming, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["no runsc"] * 4
        assert backend.asked == 1
