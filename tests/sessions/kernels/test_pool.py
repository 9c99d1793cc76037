"""The warm pool: each warm kernel is leased once, to a session without special properties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.kernels import kernel as kernels
from sessions.kernels.kernel import Kernel
from sessions.kernels.warm import PAUSE, PAUSE_MAX, QUIET
from sessions.model.errors import (
    BackendUnavailable,
    NotInitialized,
    QuotaExceeded,
    SessionClosed,
    SessionError,
    ShuttingDown,
    StartFailed,
)
from sessions.model.tasks import spawn
from sessions.model.values import (
    MEMORY_MIN,
    ExitReason,
    Limits,
    SandboxSpec,
    SessionKey,
    SessionSpec,
    StateChange,
    Status,
)
from tests.fakes import KERNELSPECS, PYTHON, FakeBackend, World, background, run, until, world_over

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


async def test_a_warm_kernel_is_leased_at_once(warm: World) -> None:
    waiting = set(warm.backend.started)
    kernel = await warm.pool.acquire(PLAIN)
    assert kernel.handle in waiting
    await dismiss(warm, kernel)


async def test_a_leased_kernel_is_replaced(warm: World) -> None:
    kernel = await warm.pool.acquire(PLAIN)
    assert warm.pool.depth() == 1
    await until(lambda: warm.pool.depth() == 2)
    assert len(warm.backend.started) == 3
    await dismiss(warm, kernel)


async def test_a_kernel_is_leased_once(warm: World) -> None:
    kernels = await asyncio.gather(*(warm.pool.acquire(PLAIN) for _ in range(5)))
    assert len({kernel.handle.id for kernel in kernels}) == 5
    assert len({kernel.launch.workspace for kernel in kernels}) == 5
    await dismiss(warm, *kernels)


async def test_a_kernel_of_an_ended_session_is_not_leased_again(warm: World) -> None:
    session = await warm.session("a")
    first = session.container
    assert first is not None
    await warm.registry.end(session.key)
    await until(lambda: warm.pool.depth() == 2)
    for name in ("b", "c", "d"):
        assert (await warm.session(name)).container is not first
    assert first not in warm.backend.alive


async def test_a_session_keeps_the_workspace_of_its_first_kernel(warm: World) -> None:
    session = await warm.session()
    assert (await run(session, "x = 1")).state is StateChange.NEW
    before = session.launch.workspace
    await session.restart()
    assert session.launch.workspace == before
    assert (await run(session, "1")).status is Status.OK


@pytest.mark.parametrize(
    "special",
    [
        replace(PLAIN, limits=Limits(memory=1024)),
        replace(PLAIN, limits=Limits(cpus=0.5)),
        replace(PLAIN, limits=Limits(output=11 * 1024**2)),
        replace(PLAIN, workspace="mine"),
        replace(PLAIN, shared=True),
        replace(PLAIN, image="other:1"),
        Launch(KERNELSPECS.find("r"), image="other:1"),  # which the usual image lacks
        replace(PLAIN, env={"TERM": "vt100"}),
        Launch(replace(PYTHON, lease=False), env={"A": "1"}),
        Launch(replace(PYTHON, lease=False), cwd="data"),
    ],
)
async def test_a_special_kernel_is_started_on_demand(warm: World, special: Launch) -> None:
    waiting = set(warm.backend.started)
    kernel = await warm.pool.acquire(special)
    assert kernel.handle not in waiting
    assert replace(kernel.launch, workspace=special.workspace) == special
    assert warm.pool.depth() == 2
    assert warm.seen.leases == []
    await dismiss(warm, kernel)


@pytest.mark.parametrize("reason", [ExitReason.EXITED, ExitReason.OOM])
async def test_a_warm_kernel_that_dies_is_replaced_at_once_and_leaves_nothing(warm: World, reason: ExitReason) -> None:
    dead, alive = warm.backend.started
    dead.dies(137, reason)
    await until(lambda: warm.pool.depth() == 1)
    await until(lambda: warm.pool.depth() == 2)
    assert len(warm.backend.started) == 3
    assert warm.seen.evictions == 1
    await until(lambda: dead.workspace.name not in warm.backend.workspaces)
    kernel = await warm.pool.acquire(PLAIN)
    assert kernel.handle is alive
    await dismiss(warm, kernel)


async def test_warm_kernels_that_die_repeatedly_are_replaced_after_a_pause(warm: World) -> None:
    for kernel in list(warm.backend.started):
        kernel.dies(1)
    await until(lambda: warm.seen.evictions == 2)
    await until(lambda: warm.pool.depth() == 2)  # the first death had both replaced
    warm.backend.kernel.dies(1)
    await until(lambda: warm.seen.evictions == 3)
    warm.pool.tend()
    await asyncio.sleep(0.02)
    assert (warm.pool.depth(), len(warm.backend.started)) == (1, 4)
    warm.clock.passes(PAUSE)
    warm.pool.tend()
    await until(lambda: warm.pool.depth() == 2)


async def test_a_kernel_is_started_when_all_warm_ones_have_died(warm: World) -> None:
    warm.backend.gate.clear()
    for kernel in list(warm.backend.started):
        kernel.dies(1)
    await until(lambda: warm.pool.depth() == 0)
    starting = asyncio.gather(warm.pool.acquire(PLAIN))
    warm.backend.gate.set()
    (fresh,) = await starting
    assert fresh.alive
    await until(lambda: warm.pool.depth() == 2)
    assert warm.seen.leases == [False]
    await dismiss(warm, fresh)


# -- the lease -------------------------------------------------------------------------------------------------


async def test_a_lease_costs_one_round_trip_and_no_call_of_the_engine(warm: World) -> None:
    warm.backend.gate.clear()  # later starts are for other sessions
    first = warm.backend.started[0]
    sent = first.taken.copy()
    session = await warm.session()
    assert session.container is first
    assert first.taken[len(sent) :] == ["lease_request"]
    assert (await run(session, "x = 1")).execution_count == 1
    first_cell = first.taken[len(sent) :]
    await run(session, "x")
    assert first_cell == ["lease_request", "execute_request"]
    assert first.taken[len(sent) :] == [*first_cell, "execute_request"]  # the second cell needs no further round trip
    warm.backend.gate.set()


async def test_a_lease_sets_environment_and_directory_in_one_round_trip(warm: World) -> None:
    special = replace(PLAIN, env={"GREETING": 'it\'s "quoted"\n{json}'}, cwd="data", limits=Limits(output=1))
    first = warm.backend.started[0]
    before = len(first.taken)
    kernel = await warm.pool.acquire(special)
    assert kernel.handle is first
    assert first.taken[before:] == ["lease_request"]
    assert (first.namespace["env"]["GREETING"], first.cwd) == (special.env["GREETING"], "data")
    assert kernel.launch == replace(special, workspace=kernel.launch.workspace)
    assert warm.seen.leases == [True]
    await dismiss(warm, kernel)


async def test_a_kernel_that_takes_no_lease_is_told_the_name_of_its_session_before_the_first_cell() -> None:
    backend = FakeBackend()
    spec = replace(PYTHON, lease=False, name_code="env['{name}'] = '{value}'")
    kernel = await Kernel.start(backend, Launch(spec))
    assert await kernel.lease(Launch(spec, session="s.1"))
    await until(lambda: backend.kernel.executed)
    assert backend.kernel.executed == ["env['KERNEL_GATEWAY_SESSION'] = 's.1'"]
    assert backend.kernel.namespace["env"]["KERNEL_GATEWAY_SESSION"] == "s.1"
    await kernel.kill(SessionClosed())
    await backend.close()


async def test_a_session_gets_a_warm_kernel_that_knows_its_name(warm: World) -> None:
    session = await warm.session("mine")
    assert session.container is warm.backend.started[0]
    assert "KERNEL_GATEWAY_SESSION" not in warm.backend.started[1].namespace["env"]
    assert warm.backend.started[0].namespace["env"]["KERNEL_GATEWAY_SESSION"] == "mine"


async def test_the_next_kernel_of_a_session_has_the_environment_and_directory_of_its_lease(warm: World) -> None:
    key = SessionKey("acme", "s1")
    session = await warm.registry.get_or_create(key, SessionSpec(env={"GREETING": "hello"}, cwd="data"))
    assert session.container is warm.backend.started[0]
    await session.restart()
    assert warm.backend.kernel.launch.env == {"GREETING": "hello"}
    assert warm.backend.kernel.launch.cwd == "data"


@pytest.mark.parametrize("launch", [PLAIN, replace(PLAIN, env={"A": "1"})])
async def test_a_warm_kernel_that_does_not_answer_is_ended_and_the_next_one_leased(
    warm: World, monkeypatch: pytest.MonkeyPatch, launch: Launch
) -> None:
    mute, well = warm.backend.started
    mute.behaviour = replace(mute.behaviour, answers=False)
    evicted = warm.seen.evicted

    def wait_for_the_next(language: str) -> None:
        evicted(language)
        monkeypatch.undo()

    monkeypatch.setattr(warm.seen, "evicted", wait_for_the_next)
    monkeypatch.setattr(kernels, "PULSE_TIMEOUT", 0.05)
    kernel = await warm.pool.acquire(launch)
    assert kernel.handle is well
    await until(lambda: not mute.alive and mute.workspace.name not in warm.backend.workspaces)
    assert (warm.seen.evictions, warm.seen.leases) == (1, [True])
    await dismiss(warm, kernel)


async def test_a_kernel_is_started_when_no_warm_one_answers(warm: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PULSE_TIMEOUT", 0.05)
    warm.backend.gate.clear()
    mutes = list(warm.backend.started)
    for mute in mutes:
        mute.behaviour = replace(mute.behaviour, answers=False)
    starting = asyncio.gather(warm.pool.acquire(PLAIN))
    await until(lambda: warm.seen.leases == [False])
    warm.backend.gate.set()
    (kernel,) = await starting
    assert kernel.handle not in mutes
    await until(lambda: not any(mute.alive for mute in mutes))
    await dismiss(warm, kernel)


async def test_a_kernel_whose_lease_is_cancelled_is_ended(warm: World) -> None:
    first = warm.backend.started[0]
    first.behaviour = replace(first.behaviour, answers=False)
    leaving = asyncio.gather(warm.pool.acquire(replace(PLAIN, env={"SECRET": "theirs"})))
    await until(lambda: "lease_request" in first.taken)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await until(lambda: not first.alive and first.workspace.name not in warm.backend.workspaces)
    kernel = await warm.pool.acquire(PLAIN)
    assert kernel.handle is not first
    await dismiss(warm, kernel)


async def test_no_kernel_is_leased_twice_over_many_sessions(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=2, pool_max=4, starts=2) as world:
        seen: list[str] = []
        for _ in range(10):
            sessions = await asyncio.gather(*(world.session(f"s{number}") for number in range(5)))
            seen += [session.container.id for session in sessions if session.container is not None]
            await asyncio.gather(*(world.registry.end(session.key) for session in sessions))
        assert len(seen) == len(set(seen)) == 50
        assert {True, False} == set(world.seen.leases)


# -- growing and shrinking -------------------------------------------------------------------------------------


async def burst(world: World, count: int) -> None:
    """Lease `count` kernels at once, then end them."""
    kernels = await asyncio.gather(*(world.pool.acquire(PLAIN) for _ in range(count)))
    await dismiss(world, *kernels)


async def test_the_pool_grows_with_demand_up_to_its_maximum(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1, pool_max=3) as world:
        world.pool.keep_warm(PYTHON)
        await until(lambda: world.pool.depth() == 1)
        await burst(world, 2)
        await until(lambda: world.pool.depth() == 2)
        assert world.seen.shelves == {"python": (2, 2)}
        await burst(world, 10)
        await until(lambda: world.pool.depth() == 3)
        await asyncio.sleep(0.02)
        assert world.seen.shelves == {"python": (3, 3)}
        assert world.seen.leases.count(True) == 3


@pytest.mark.parametrize(("size", "most"), [(0, 0), (0, 4), (1, 0), (1, 1)])
async def test_a_pool_without_room_to_grow_keeps_its_size(backend: FakeBackend, size: int, most: int) -> None:
    async with world_over(backend, pool_size=size, pool_max=most) as world:
        await burst(world, 5)
        await until(lambda: world.pool.depth() == size)
        await asyncio.sleep(0.02)
        assert world.pool.depth() == size


async def test_warm_kernels_that_were_not_needed_for_long_are_ended(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1, pool_max=4) as world:
        await burst(world, 5)
        await until(lambda: world.pool.depth() == 4)
        world.clock.passes(QUIET)
        world.pool.tend()  # sessions found no warm kernel in that time
        assert world.pool.depth() == 4
        for _ in range(2):
            await burst(world, 2)  # two of the four are needed
            await until(lambda: world.pool.depth() == 4)
        world.clock.passes(QUIET - 1)
        world.pool.tend()
        assert world.pool.depth() == 4
        world.clock.passes(1)
        world.pool.tend()
        assert world.seen.shelves == {"python": (2, 2)}
        await until(lambda: len(backend.alive) == 2 and len(backend.workspaces) == 2)
        world.clock.passes(QUIET)
        world.pool.tend()
        assert world.seen.shelves == {"python": (1, 1)}
        await until(lambda: len(backend.alive) == 1)
        world.clock.passes(QUIET)
        world.pool.tend()
        assert world.seen.shelves == {"python": (1, 1)}


async def test_a_failed_refill_is_retried_after_a_pause(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        backend.refuses = StartFailed()
        world.pool.keep_warm(PYTHON)
        await until(lambda: backend.asked == 1)
        await asyncio.sleep(0.01)
        backend.refuses = None
        world.pool.tend()
        await asyncio.sleep(0.01)
        assert backend.asked == 1
        world.clock.passes(PAUSE)
        world.pool.tend()
        await until(lambda: world.pool.depth() == 1)


async def test_the_pool_waits_longer_after_each_failed_start_until_one_succeeds(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        backend.refuses = StartFailed()
        world.pool.keep_warm(PYTHON)
        for number, pause in enumerate([PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE, PAUSE_MAX, PAUSE_MAX], 1):
            await until(lambda: not background("warm python"))
            assert backend.asked == number
            world.clock.passes(pause - 1)
            world.pool.tend()
            world.pool.keep_warm(PYTHON)
            assert not background("warm python"), pause
            world.clock.passes(1)
            world.pool.tend()
        await until(lambda: not background("warm python"))
        with pytest.raises(StartFailed):  # a session's own start is tried, and has the pool try nothing
            await world.pool.acquire(PLAIN)
        assert not background("warm python")
        backend.refuses = None
        kernel = await world.pool.acquire(PLAIN)
        await until(lambda: world.pool.depth() == 1)
        await dismiss(world, kernel)


@pytest.mark.parametrize(("cause", "warnings"), [(ShuttingDown(), 0), (StartFailed(), 1)])
async def test_a_refill_that_fails_is_a_warning_unless_the_gateway_ends(
    backend: FakeBackend, cause: SessionError, warnings: int
) -> None:
    async with world_over(backend, pool_size=1) as world:
        backend.refuses = cause
        with capture_logs() as logs:
            world.pool.keep_warm(PYTHON)
            await until(lambda: backend.asked == 1)
            await asyncio.sleep(0.01)
        assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["no warm kernel"] * warnings


async def test_kernels_for_sessions_start_before_warm_kernels(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=2, starts=1) as world:
        backend.gate.clear()
        world.pool.keep_warm(PYTHON)
        await until(lambda: backend.asked == 1)
        waiting = asyncio.gather(*(world.pool.acquire(replace(PLAIN, tenant="acme")) for _ in range(3)))
        await until(lambda: world.starts.waiting == 3)
        backend.gate.set()
        kernels = await waiting
        # The first start began before the three requests; the fifth kernel completed the pool's two.
        assert [kernel.handle for kernel in kernels] == backend.started[1:4]
        await until(lambda: world.pool.depth() == 2)
        await dismiss(world, *kernels)


async def test_a_pool_of_size_zero_starts_kernels_on_demand(world: World) -> None:
    kernel = await world.pool.acquire(PLAIN)
    await asyncio.sleep(0.01)
    assert (len(world.backend.started), world.pool.depth()) == (1, 0)
    await dismiss(world, kernel)


async def test_the_first_session_of_a_language_fills_the_pool(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        await world.session()
        await until(lambda: world.pool.depth() == 1)
        assert len(backend.started) == 2


async def test_a_failed_refill_is_retried_with_the_next_request_that_gets_a_kernel(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        backend.refuses = StartFailed()
        for _ in range(2):
            with pytest.raises(StartFailed):
                await world.pool.acquire(PLAIN)
            await until(lambda: not background("warm python"))
        assert backend.asked == 3  # two requests, and one refill
        backend.refuses = None
        kernel = await world.pool.acquire(PLAIN)
        await until(lambda: world.pool.depth() == 1)
        await dismiss(world, kernel)


async def test_concurrent_refills_fill_the_pool_once(warm: World) -> None:
    for _ in range(10):
        warm.pool.keep_warm(PYTHON)
    await asyncio.sleep(0.02)
    assert len(warm.backend.started) == 2


async def test_a_kernel_leased_during_a_refill_is_replaced(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1) as world:
        for _ in range(5):
            world.pool.keep_warm(PYTHON)
            await until(lambda: world.pool.depth() == 1)
            kernel = await world.pool.acquire(PLAIN)  # in the moment in which the refill has ended
            await until(lambda: world.pool.depth() == 1)
            await dismiss(world, kernel)


@pytest.mark.parametrize("trouble", [NotInitialized("no runsc"), BackendUnavailable("no engine")])
async def test_no_kernel_is_leased_while_the_sandbox_is_not_ready(
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


async def test_closing_the_pool_ends_all_warm_kernels(backend: FakeBackend) -> None:
    world = World(backend, pool_size=2)
    await world.readiness.check()
    world.pool.keep_warm(PYTHON)
    await until(lambda: world.pool.depth() == 2)
    await world.pool.close()
    assert (backend.alive, backend.workspaces, world.pool.depth()) == ([], [], 0)
    world.pool.keep_warm(PYTHON)
    await asyncio.sleep(0.01)
    assert backend.asked == 2


async def test_closing_the_pool_ends_kernels_that_are_being_started(backend: FakeBackend) -> None:
    backend.behaves(answers=False)
    world = World(backend, pool_size=2)
    await world.readiness.check()
    world.pool.keep_warm(PYTHON)
    await until(lambda: backend.started)
    async with asyncio.timeout(60):
        await world.pool.close()
    assert (backend.alive, backend.workspaces) == ([], [])


async def test_warm_kernels_have_the_default_limits_of_the_settings(backend: FakeBackend) -> None:
    small = SessionSpec(limits=Limits(memory=MEMORY_MIN))
    async with world_over(backend, pool_size=1, defaults=small) as world:
        await world.session()
        await until(lambda: world.pool.depth() == 1)
        assert backend.kernel.launch.limits == small.limits


# -- failures in the background --------------------------------------------------------------------------------


async def test_the_pool_is_tended_again_after_a_failure(warm: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(warm.seen, "depth_changed", None)
        tending = spawn(warm.pool.run(0.001), "pool")
        await until(lambda: logs)
    warm.backend.started[0].dies()
    warm.clock.passes(PAUSE)
    await until(lambda: warm.seen.evictions == 1 and warm.pool.depth() == 2)
    warm.seen.shelves.clear()
    await until(lambda: warm.seen.shelves)
    tending.cancel()
    await asyncio.wait({tending})


@pytest.mark.parametrize("failure", [BackendUnavailable(), RuntimeError("a defect")])
async def test_files_of_an_ended_session_that_could_not_be_deleted_are_deleted_later(
    world: World, failure: Exception
) -> None:
    session = await world.session()
    world.backend.failures["delete_workspace"] = failure
    with capture_logs() as logs:
        await world.registry.end(session.key)
    assert len(world.backend.workspaces) == 1
    assert logs[-1]["task"] == f"removal of workspace {world.backend.workspaces[0]}"
    world.backend.failures.clear()
    tending = spawn(world.pool.run(0.001), "pool")
    await until(lambda: world.backend.workspaces == [])
    tending.cancel()
    await asyncio.wait({tending})


async def test_files_of_a_sandbox_that_could_not_be_deleted_are_deleted_later(world: World) -> None:
    sandbox = await world.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("t"))
    world.backend.failures["delete_workspace"] = BackendUnavailable()
    with capture_logs():
        await world.sandboxes.end(sandbox.key)
    assert world.backend.workspaces == [sandbox.workspace]
    world.backend.failures.clear()
    await world.pool.close()
    assert world.backend.workspaces == []


async def test_files_of_a_warm_kernel_that_could_not_be_deleted_are_deleted_later(warm: World) -> None:
    warm.backend.failures["delete_workspace"] = BackendUnavailable()
    with capture_logs() as logs:
        warm.backend.started[0].dies()
        await until(lambda: any(str(entry.get("task")).startswith("removal") for entry in logs))
    warm.backend.failures.clear()
    await warm.pool.close()
    assert warm.backend.workspaces == []


async def test_files_that_cannot_be_deleted_do_not_keep_the_gateway_from_ending(backend: FakeBackend) -> None:
    world = World(backend, pool_size=2)
    await world.readiness.check()
    world.pool.keep_warm(PYTHON)
    await until(lambda: world.pool.depth() == 2)
    backend.failures["delete_workspace"] = BackendUnavailable()
    with capture_logs():
        await world.close()
    assert (backend.alive, len(backend.workspaces)) == ([], 2)
    backend.failures.clear()
    assert await World(backend).readiness.check()
    assert backend.workspaces == [], "the next gateway finds them"


# -- memory of all kernels together ----------------------------------------------------------------------------

ONE = Limits().memory


async def test_a_start_beyond_the_memory_of_all_kernels_is_refused_before_it_begins(backend: FakeBackend) -> None:
    async with world_over(backend, memory=2 * ONE) as world:
        await world.session("a")
        await world.session("b")
        asked = backend.asked
        with pytest.raises(QuotaExceeded) as refused:
            await world.session("c")
        assert refused.value.details["limit"] == "memory_in_all"
        assert backend.asked == asked
        await world.registry.end(SessionKey("acme", "a"))
        await world.session("c")
        assert world.memory.promised == 2 * ONE
    assert world.memory.promised == 0


async def test_a_session_can_be_restarted_when_no_memory_is_left(backend: FakeBackend) -> None:
    async with world_over(backend, memory=ONE) as world:
        session = await world.session()
        await session.restart()
        assert (await run(session, "1")).status is Status.OK
        assert world.memory.promised == ONE


async def test_memory_of_a_start_that_fails_is_given_back(backend: FakeBackend) -> None:
    async with world_over(backend, memory=ONE) as world:
        backend.refuses = StartFailed("no room")
        with pytest.raises(StartFailed):
            await world.session()
        backend.refuses = None
        assert world.memory.promised == 0
        await world.session()


@pytest.mark.parametrize("container", [False, True], ids=["kernel", "sandbox"])
async def test_warm_kernels_count_and_give_way(backend: FakeBackend, container: bool) -> None:  # noqa: FBT001
    async with world_over(backend, pool_size=2, memory=2 * ONE) as world:
        world.pool.keep_warm(PYTHON)
        await until(lambda: world.pool.depth() == 2)
        assert world.memory.promised == 2 * ONE
        if container:
            await world.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("template"))
        else:
            limits = replace(Limits(), memory=ONE // 2)
            await world.registry.create(SessionKey("acme", "small"), SessionSpec(limits=limits))
        assert world.pool.depth() == 1
        world.pool.tend()
        await asyncio.sleep(0.05)
        assert world.memory.promised <= 2 * ONE
        assert world.pool.depth() == 1


async def test_without_warm_kernels_left_the_refusal_is_final(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1, memory=ONE) as world:
        world.pool.keep_warm(PYTHON)
        await until(lambda: world.pool.depth() == 1)
        with pytest.raises(QuotaExceeded):
            await world.registry.create(SessionKey("acme", "large"), SessionSpec(limits=Limits(memory=2 * ONE)))
        assert world.pool.depth() == 0
