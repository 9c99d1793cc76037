"""Kernels that wait for their session: handed out once, to who asked for nothing special."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sessions.backends.base import Launch
from sessions.errors import BackendUnavailable, NotInitialized, SessionClosed, StartFailed
from sessions.kernel import Kernel
from sessions.models import Limits, SessionSpec, StateChange, Status
from tests.fakes import PYTHON, FakeBackend, World, run, until, world_over

PLAIN = Launch(PYTHON)


@pytest.fixture
async def warm(backend: FakeBackend) -> AsyncIterator[World]:
    """A world whose pool has two kernels."""
    async with world_over(backend, pool_size=2) as world:
        world.pool.keep_warm(PYTHON)
        await until(lambda: world.pool.depth() == 2)
        yield world


async def dismiss(world: World, *kernels: Kernel) -> None:
    """End kernels that no session has."""
    for kernel in kernels:
        await kernel.kill(SessionClosed())
        await world.pool.delete_workspace(str(kernel.launch.workspace))


async def test_a_kernel_that_waits_is_handed_out_at_once(warm: World) -> None:
    waiting = set(warm.backend.started)
    kernel = await warm.pool.acquire(PLAIN)
    assert kernel.handle in waiting
    await dismiss(warm, kernel)


async def test_another_takes_its_place(warm: World) -> None:
    kernel = await warm.pool.acquire(PLAIN)
    assert warm.pool.depth() == 1
    await until(lambda: warm.pool.depth() == 2)
    assert len(warm.backend.started) == 3
    await dismiss(warm, kernel)


async def test_a_kernel_is_handed_out_once(warm: World) -> None:
    kernels = await asyncio.gather(*(warm.pool.acquire(PLAIN) for _ in range(5)))
    assert len({kernel.handle.id for kernel in kernels}) == 5
    assert len({kernel.launch.workspace for kernel in kernels}) == 5
    await dismiss(warm, *kernels)


async def test_a_kernel_never_comes_back(warm: World) -> None:
    session = await warm.session("a")
    first = session._kernel
    assert first is not None
    await warm.registry.end(session.key)
    await until(lambda: warm.pool.depth() == 2)
    for name in ("b", "c", "d"):
        assert (await warm.session(name))._kernel is not first
    assert not first.alive


async def test_a_session_adopts_the_workspace_that_its_kernel_brings(warm: World) -> None:
    session = await warm.session()
    assert (await run(session, "x = 1")).state is StateChange.PRESERVED
    before = session._launch.workspace
    await session.restart()
    assert session._launch.workspace == before
    assert (await run(session, "1")).status is Status.OK


@pytest.mark.parametrize(
    "special",
    [replace(PLAIN, env={"A": "1"}), replace(PLAIN, limits=Limits(memory=1024)), replace(PLAIN, workspace="mine")],
)
async def test_what_is_special_is_started_when_it_is_asked_for(warm: World, special: Launch) -> None:
    waiting = set(warm.backend.started)
    kernel = await warm.pool.acquire(special)
    assert kernel.handle not in waiting
    assert replace(kernel.launch, workspace=special.workspace) == special
    assert warm.pool.depth() == 2
    await dismiss(warm, kernel)


async def test_a_kernel_that_died_waiting_is_passed_over_and_leaves_nothing(warm: World) -> None:
    dead, alive = warm.backend.started
    dead.dies(1)
    await until(lambda: warm.pool.depth() == 1)
    kernel = await warm.pool.acquire(PLAIN)
    assert kernel.handle is alive
    await until(lambda: dead.workspace.name not in warm.backend.workspaces)
    await dismiss(warm, kernel)


async def test_when_all_have_died_one_is_started(warm: World) -> None:
    for kernel in list(warm.backend.started):
        kernel.dies(1)
    await until(lambda: warm.pool.depth() == 0)
    fresh = await warm.pool.acquire(PLAIN)
    assert fresh.alive
    await until(lambda: warm.pool.depth() == 2)
    await dismiss(warm, fresh)


async def test_a_pool_of_none_starts_each_when_it_is_asked_for(world: World) -> None:
    kernel = await world.pool.acquire(PLAIN)
    await asyncio.sleep(0.01)
    assert (len(world.backend.started), world.pool.depth()) == (1, 0)
    await dismiss(world, kernel)


async def test_the_first_of_a_language_warms_the_pool(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        await world.session()
        await until(lambda: world.pool.depth() == 1)
        assert len(backend.started) == 2


async def test_a_pool_that_cannot_be_filled_is_tried_again_later(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        backend.refuses = StartFailed()
        for _ in range(2):
            with pytest.raises(StartFailed):
                await world.pool.acquire(PLAIN)
            await asyncio.sleep(0.01)
        assert backend.asked == 4
        backend.refuses = None
        kernel = await world.pool.acquire(PLAIN)
        await until(lambda: world.pool.depth() == 1)
        await dismiss(world, kernel)


async def test_many_at_once_fill_it_once(warm: World) -> None:
    for _ in range(10):
        warm.pool.keep_warm(PYTHON)
    await asyncio.sleep(0.02)
    assert len(warm.backend.started) == 2


async def test_one_taken_while_it_is_filled_is_made_up_for(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        for _ in range(5):
            world.pool.keep_warm(PYTHON)
            await until(lambda: world.pool.depth() == 1)
            kernel = await world.pool.acquire(PLAIN)  # the very moment in which filling it has ended
            await until(lambda: world.pool.depth() == 1)
            await dismiss(world, kernel)


@pytest.mark.parametrize("trouble", [NotInitialized("no runsc"), BackendUnavailable("no engine")])
async def test_nothing_is_handed_out_while_the_sandbox_is_not_ready(
    warm: World, trouble: NotInitialized | BackendUnavailable
) -> None:
    warm.backend.unprepared = trouble
    await warm.readiness.check()
    with pytest.raises(type(trouble), match=trouble.message):
        await warm.pool.acquire(PLAIN)
    assert len(warm.backend.started) == 2
    warm.backend.unprepared = None
    await warm.readiness.check()
    await dismiss(warm, await warm.pool.acquire(PLAIN))


async def test_a_pool_that_closes_ends_all_that_wait(backend: FakeBackend) -> None:
    world = World(backend, pool_size=2)
    await world.readiness.check()
    world.pool.keep_warm(PYTHON)
    await until(lambda: world.pool.depth() == 2)
    await world.pool.close()
    assert (backend.alive, backend.workspaces, world.pool.depth()) == ([], [], 0)
    world.pool.keep_warm(PYTHON)
    await asyncio.sleep(0.01)
    assert backend.asked == 2


async def test_a_pool_that_closes_ends_what_is_being_started(backend: FakeBackend) -> None:
    backend.behaves(answers=False)
    world = World(backend, pool_size=2)
    await world.readiness.check()
    world.pool.keep_warm(PYTHON)
    await until(lambda: backend.started)
    async with asyncio.timeout(1):
        await world.pool.close()
    assert (backend.alive, backend.workspaces) == ([], [])


async def test_other_defaults_are_kept_warm(backend: FakeBackend) -> None:
    small = SessionSpec(limits=Limits(memory=1024))
    async with world_over(backend, pool_size=1, defaults=small) as world:
        await world.session()
        await until(lambda: world.pool.depth() == 1)
        assert backend.kernel.launch.limits == small.limits
