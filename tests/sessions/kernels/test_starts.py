"""Turns for starting kernels: a limited number, in order, and no turn is lost when a caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sessions.backends.base import Launch
from sessions.errors import NotInitialized, SessionClosed, StartFailed
from sessions.kernels import starts as module
from sessions.kernels.starts import Turns
from sessions.sandbox import NO_KERNEL
from sessions.tasks import spawn
from tests.fakes import PYTHON, FakeBackend, until, world_over


class Queue:
    """Callers that take turns, one after the other or several at a time."""

    def __init__(self, at_once: int) -> None:
        self.turns = Turns(at_once)
        self.order: list[str] = []
        self.most = 0
        self._now = 0
        self.gates: dict[str, asyncio.Event] = {}

    async def come(self, name: str, *, ahead: bool = False) -> asyncio.Task[None]:
        """Let a caller wait for a turn and keep it until its gate is opened."""
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
        """Let callers leave, each when its turn has come."""
        for name in names:
            await until(lambda name=name: name in self.order)  # type: ignore[misc]
            self.gates[name].set()
        await asyncio.sleep(0)


@asynccontextmanager
async def queue(at_once: int) -> AsyncIterator[Queue]:
    """Make a queue, and check in the end that all turns are free."""
    queue = Queue(at_once)
    yield queue
    assert queue.turns.waiting == 0
    async with asyncio.timeout(60):
        for _ in range(at_once):
            await queue.turns.turn().__aenter__()


async def test_turns_are_limited_and_given_in_order() -> None:
    async with queue(2) as people:
        tasks = [await people.come(name) for name in "abcdef"]
        assert people.order == ["a", "b"]
        assert people.turns.waiting == 4
        await people.go(*"abcdef")
        await asyncio.gather(*tasks)
        assert people.order == list("abcdef")
        assert people.most == 2


async def test_warm_kernels_get_their_turns_last() -> None:
    async with queue(1) as people:
        tasks = [await people.come("a")]
        tasks += [await people.come(name, ahead=True) for name in ("warm 1", "warm 2")]
        tasks += [await people.come(name) for name in "bc"]
        assert people.turns.waiting == 2
        await people.go("a", "b", "c", "warm 1", "warm 2")
        await asyncio.gather(*tasks)
        assert people.order == ["a", "b", "c", "warm 1", "warm 2"]


async def test_a_waiting_caller_may_leave() -> None:
    async with queue(1) as people:
        first, second, third = [await people.come(name) for name in "abc"]
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert people.turns.waiting == 1
        await people.go("a", "c")
        await asyncio.gather(first, third)
        assert people.order == ["a", "c"]


async def test_a_caller_that_leaves_when_it_gets_its_turn_passes_it_on() -> None:
    async with queue(1) as people:
        async with people.turns.turn():
            first, second = [await people.come(name) for name in "ab"]
        first.cancel()  # it has the turn, and has not run since
        await people.go("b")
        await second
        assert people.order == ["b"]
        assert first.cancelled()


async def test_a_caller_that_fails_passes_its_turn_on() -> None:
    async with queue(1) as people:
        with pytest.raises(ZeroDivisionError):
            async with people.turns.turn():
                raise ZeroDivisionError
        task = await people.come("a")
        await people.go("a")
        await task


async def test_only_warm_kernels_wait_for_their_turn_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_many_kernels_at_once_are_started_a_few_at_a_time(backend: FakeBackend) -> None:
    async with world_over(backend, starts=3) as world:
        backend.gate.clear()
        coming = asyncio.gather(*(world.starts.start_kernel(Launch(PYTHON)) for _ in range(20)))
        await until(lambda: world.starts.waiting == 17)
        assert backend.asked == 3
        backend.gate.set()
        kernels = await coming
        assert len(world.seen.starts) == 20
        for kernel in kernels:
            await kernel.kill(SessionClosed())
            await world.pool.delete_workspace(str(kernel.launch.workspace))


async def test_containers_without_a_kernel_take_turns_too(backend: FakeBackend) -> None:
    async with world_over(backend, starts=1) as world:
        backend.gate.clear()
        coming = asyncio.gather(*(world.pool.start_container(Launch(NO_KERNEL, workspace=name)) for name in "ab"))
        await until(lambda: world.starts.waiting == 1)
        backend.gate.set()
        for handle, name in zip(await coming, "ab", strict=True):
            await handle.kill()
            await world.pool.delete_workspace(name)
        assert [ready for _, ready in world.seen.starts] == [None, None]


async def test_waiting_callers_get_the_error_when_kernels_can_no_longer_be_started(backend: FakeBackend) -> None:
    async with world_over(backend, starts=1) as world:
        backend.gate.clear()
        coming = [spawn(world.starts.start_kernel(Launch(PYTHON)), "start") for _ in range(4)]
        await until(lambda: world.starts.waiting == 3)
        backend.unprepared = backend.refuses = NotInitialized("no runsc")
        await world.readiness.check()
        backend.gate.set()
        outcomes = await asyncio.gather(*coming, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["no runsc"] * 4
        assert backend.asked == 1
