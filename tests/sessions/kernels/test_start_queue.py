"""Starts of kernels: a limited number at a time, tenants take turns, and no turn is lost when a caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sessions.backends.base import Launch
from sessions.kernels import start_queue as module
from sessions.kernels.kernel import Kernel
from sessions.model.errors import NotInitialized, SessionClosed, StartFailed
from sessions.model.kernelspecs import NO_KERNEL
from sessions.model.tasks import spawn
from sessions.tenants.shares import NOBODY
from tests.fakes import PYTHON, FakeBackend, World, until, world_over


@asynccontextmanager
async def gated(backend: FakeBackend, starts: int) -> AsyncIterator[World]:
    """Yield a world in which no start succeeds until `backend.gate` is set; in the end, no turn may be lost."""
    async with world_over(backend, starts=starts) as world:
        backend.gate.clear()
        yield world
        backend.gate.set()
        await until(lambda: not world.starts.waiting)
        backend.gate.clear()
        asked = backend.asked
        begun = [begin(world, f"tenant-{number}") for number in range(starts)]  # no tenant may have all turns
        await until(lambda: backend.asked == asked + starts)
        backend.gate.set()
        await end(world, *begun)


def begin(world: World, tenant: str) -> asyncio.Task[Kernel]:
    return spawn(world.starts.start_kernel(Launch(PYTHON, tenant=tenant)), f"start for {tenant}")


async def end(world: World, *begun: asyncio.Task[Kernel]) -> None:
    for kernel in await asyncio.gather(*begun):
        await kernel.kill(SessionClosed())
        await world.pool.delete_workspace(str(kernel.launch.workspace))


def order(backend: FakeBackend) -> list[str]:
    """Return the tenants of the kernels that were started, in order."""
    return [kernel.launch.tenant for kernel in backend.started]


async def test_many_kernels_at_once_are_started_a_few_at_a_time(backend: FakeBackend) -> None:
    async with gated(backend, starts=3) as world:
        coming = [begin(world, f"tenant-{number}") for number in range(20)]
        await until(lambda: world.starts.waiting == 17)
        assert backend.asked == 3
        backend.gate.set()
        await end(world, *coming)
        assert len(world.seen.starts) == 20


async def test_a_tenant_whose_starts_take_long_leaves_a_turn_to_the_others(backend: FakeBackend) -> None:
    async with gated(backend, starts=4) as world:
        flood = [begin(world, "hostile") for _ in range(12)]
        await until(lambda: world.starts.waiting == 9)
        assert backend.asked == 3
        other = begin(world, "other")
        await until(lambda: backend.asked == 4)
        backend.gate.set()
        await end(world, *flood, other)


async def test_tenants_take_turns_and_warm_kernels_are_started_last(backend: FakeBackend) -> None:
    async with gated(backend, starts=1) as world:
        coming = [begin(world, tenant) for tenant in ("a", "a", NOBODY, "a", "b", "b", NOBODY)]
        await until(lambda: world.starts.waiting == 4)  # without the warm ones
        backend.gate.set()
        await end(world, *coming)
        assert order(backend) == ["a", "a", "b", "a", "b", NOBODY, NOBODY]


async def test_a_waiting_caller_may_leave(backend: FakeBackend) -> None:
    async with gated(backend, starts=1) as world:
        first, second, third = (begin(world, tenant) for tenant in "abc")
        await until(lambda: world.starts.waiting == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        backend.gate.set()
        await end(world, first, third)
        assert order(backend) == ["a", "c"]


async def test_a_start_that_fails_passes_its_turn_on(backend: FakeBackend) -> None:
    async with gated(backend, starts=1) as world:
        first, second = begin(world, "a"), begin(world, "b")
        await until(lambda: world.starts.waiting == 1)
        backend.refuses = StartFailed("no room")
        backend.gate.set()
        for each in (first, second):
            with pytest.raises(StartFailed, match="no room"):
                await each
        backend.refuses = None


async def test_only_warm_kernels_wait_for_their_turn_without_a_limit(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_MAX", 0.02)
    async with gated(backend, starts=1) as world:
        first, patient, late = begin(world, "a"), begin(world, NOBODY), begin(world, "b")
        with pytest.raises(StartFailed, match="too many kernels are being started"):
            await late
        monkeypatch.undo()
        backend.gate.set()
        await end(world, first, patient)
        assert order(backend) == ["a", NOBODY]


async def test_containers_without_a_kernel_take_turns_too(backend: FakeBackend) -> None:
    async with world_over(backend, starts=1) as world:
        backend.gate.clear()
        coming = asyncio.gather(
            *(world.pool.start_container(Launch(NO_KERNEL, workspace=name, tenant=name)) for name in "ab")
        )
        await until(lambda: world.starts.waiting == 1)
        backend.gate.set()
        for handle, name in zip(await coming, "ab", strict=True):
            await handle.kill()
            await world.pool.delete_workspace(name)
        assert [ready for _, ready in world.seen.starts] == [None, None]


async def test_waiting_callers_get_the_error_when_kernels_can_no_longer_be_started(backend: FakeBackend) -> None:
    async with world_over(backend, starts=1) as world:
        backend.gate.clear()
        coming = [begin(world, "a") for _ in range(4)]
        await until(lambda: world.starts.waiting == 3)
        backend.unprepared = backend.refuses = NotInitialized("no runsc")
        await world.readiness.check()
        backend.gate.set()
        outcomes = await asyncio.gather(*coming, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["no runsc"] * 4
        assert backend.asked == 1
