"""Warm sandboxes: a new sandbox takes a warm container and its workspace, and its first session the warm kernel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.backends.base import Launch
from sessions.kernels import kernel as kernels
from sessions.kernels.warm import QUIET
from sessions.model.errors import LedgerUnavailable, QuotaExceeded, SessionClosed, SessionError, StartFailed
from sessions.model.kernelspecs import NO_KERNEL
from sessions.model.tasks import spawn
from sessions.model.values import Limits, SandboxSpec, SessionKey, StateChange
from sessions.tenants.shares import NOBODY
from sessions.upkeep.strays import OWNERLESS_MAX
from tests.fakes import PYTHON, FakeBackend, FakeKernel, World, run, until, world_over
from tests.sessions.sandbox.test_sandboxes import read, write

KEY = SessionKey("acme", "s1")
SPEC = SandboxSpec("template")
#: memory of one container
ONE = SPEC.limits.memory


@pytest.fixture
def backend(backend: FakeBackend) -> FakeBackend:
    """A backend on which files outlive their containers."""
    backend.keeps_files = True
    return backend


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    """A world with one warm sandbox."""
    async with world_over(backend, sandboxes=1, pool_max=1) as world:
        await warmed(world)
        yield world


async def warmed(world: World) -> None:
    """Wait until a sandbox is warm."""
    world.pool.keep_sandboxes_warm(PYTHON)
    await until(lambda: world.pool.depth() == 1)


def pair(world: World) -> tuple[FakeKernel, FakeKernel]:
    """Return the kernel and the container that were started last for the pool."""
    warm = [each for each in world.backend.started if each.launch.tenant == NOBODY][-2:]
    kernel, container = sorted(warm, key=lambda each: not each.launch.kernelspec.argv)
    return kernel, container


async def only_one_stays_warm(world: World) -> None:
    """Wait until the pool has replaced what was taken."""
    await until(lambda: world.pool.depth() == 1)


# -- taking one ------------------------------------------------------------------------------------------------


async def test_a_sandbox_and_its_first_session_start_nothing(world: World) -> None:
    kernel, container = pair(world)
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, env={"A": "own"}))
    session = await sandbox.default_session("python")
    assert (sandbox.container, session.container) == (container, kernel)
    assert (sandbox.workspace, session.spec.workspace) == (kernel.launch.workspace, kernel.launch.workspace)
    assert (await run(session, "env['A']; x = 1")).state is StateChange.NEW
    assert kernel.namespace["env"]["A"] == "own"
    assert world.seen.leases == [True]


async def test_it_is_replaced_and_given_once(world: World) -> None:
    first = await world.sandboxes.create(KEY, SPEC)
    await only_one_stays_warm(world)
    second = await world.sandboxes.create(SessionKey("other", "s1"), SPEC)
    assert first.workspace != second.workspace
    sessions = [await each.default_session("python") for each in (first, second)]
    assert len({first.container, second.container, *(session.container for session in sessions)}) == 4
    assert world.seen.leases == [True, True]


async def test_without_a_warm_one_a_sandbox_starts_its_own_container(world: World) -> None:
    await world.sandboxes.create(KEY, SPEC)
    sandbox = await world.sandboxes.create(SessionKey("acme", "s2"), SPEC)
    assert [each for each in world.backend.started if each.launch.tenant == "acme"] == [sandbox.container]
    assert (await run(await sandbox.default_session("python"), "1")).state is StateChange.NEW
    assert world.seen.leases == [True, False]


@pytest.mark.parametrize("limits", [Limits(memory=ONE // 2), Limits(disk=1024**2), Limits(output=2**40)])
async def test_a_special_sandbox_is_started_on_demand(world: World, limits: Limits) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, limits=limits))
    assert sandbox.container is not pair(world)[1]
    assert (world.pool.depth(), world.seen.leases) == (1, [])


async def test_a_session_that_the_warm_kernel_does_not_fit_starts_its_own_on_the_same_files(world: World) -> None:
    kernel, container = pair(world)
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, env={"TERM": "vt100"}))
    session = await sandbox.default_session("python")
    assert sandbox.container is container
    assert session.container not in {kernel, container}
    assert session.launch.workspace == kernel.launch.workspace


async def test_the_warm_kernel_is_for_the_first_session_that_fits(world: World) -> None:
    kernel, _ = pair(world)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    strange = await sandbox.default_session("bash")
    context = await sandbox.create_session("python", "/tmp/here")
    further = await sandbox.default_session("python")
    assert context.container is kernel
    assert kernel.cwd == "/tmp/here"
    assert kernel not in {strange.container, further.container}


async def test_files_of_the_warm_kernel_are_those_of_the_sandbox(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, SPEC)
    await write(sandbox, "a", b"from a client")
    session = await sandbox.default_session("python")
    seen = await run(session, "p = __import__('pathlib').Path; p('b').write_text('code'); print(p('a').read_text())")
    assert seen.outputs[0]["text"] == "from a client\n"
    assert await read(sandbox, "b") == b"code"
    further = await sandbox.create_session("python", "")
    seen = await run(further, "print(__import__('pathlib').Path('b').read_text())")
    assert seen.outputs[0]["text"] == "code\n"


async def test_none_is_kept_where_files_end_with_their_containers(backend: FakeBackend) -> None:
    backend.keeps_files = False
    async with world_over(backend, sandboxes=1) as world:
        world.pool.keep_sandboxes_warm(PYTHON)
        await asyncio.sleep(0)
        await world.sandboxes.create(KEY, SPEC)
        assert (backend.asked, world.seen.leases) == (1, [])


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "container"])
async def test_one_that_ends_in_the_pool_is_replaced_and_leaves_nothing(world: World, which: int) -> None:
    warm = pair(world)
    warm[which].dies(1)
    await until(lambda: world.seen.evictions == 1 and world.pool.depth() == 1)
    await until(lambda: not any(each.alive for each in warm))
    await until(lambda: len(world.backend.workspaces) == 1)
    assert (await world.sandboxes.create(KEY, SPEC)).container is pair(world)[1]


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "container"])
async def test_one_that_ends_just_now_is_not_taken(world: World, which: int) -> None:
    warm = pair(world)
    warm[which].dies(1)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    await write(sandbox, "a", b"kept")
    session = await sandbox.default_session("python")
    assert (await run(session, "1")).state is StateChange.NEW
    assert await read(sandbox, "a") == b"kept"


async def test_a_kernel_that_ends_at_the_hand_over_costs_the_sandbox_nothing(world: World) -> None:
    kernel, container = pair(world)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    await write(sandbox, "a", b"kept")
    kernel.dies(1)
    session = await sandbox.default_session("python")
    assert (await run(session, "1")).state is StateChange.NEW
    assert (sandbox.container, await read(sandbox, "a")) == (container, b"kept")
    assert world.seen.evictions == 1


async def test_a_silent_kernel_is_ended_and_the_files_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PULSE_TIMEOUT", 0.05)
    kernel, _ = pair(world)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    await write(sandbox, "a", b"kept")
    kernel.behaviour = replace(kernel.behaviour, answers=False)
    session = await sandbox.default_session("python")
    assert session.container is not kernel
    await until(lambda: not kernel.alive)
    assert await read(sandbox, "a") == b"kept"


@pytest.mark.parametrize("used", [False, True])
async def test_the_end_of_a_sandbox_ends_the_kernel_that_waits_for_it(world: World, used: bool) -> None:  # noqa: FBT001
    warm = pair(world)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    if used:
        await sandbox.default_session("python")
    await world.sandboxes.end(KEY)
    assert not any(each.alive for each in warm)
    assert sandbox.workspace not in world.backend.workspaces


async def test_a_sandbox_that_ends_while_its_first_session_begins_leaves_nothing(world: World) -> None:
    kernel, container = pair(world)
    kernel.behaviour = replace(kernel.behaviour, answers=False)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    beginning = spawn(sandbox.default_session("python"), "first session")
    await until(lambda: "lease_request" in kernel.taken)
    await world.sandboxes.end(KEY)
    with pytest.raises(SessionClosed):
        await beginning
    assert not kernel.alive
    assert not container.alive
    assert sandbox.workspace not in world.backend.workspaces


async def test_a_sandbox_that_ends_before_it_began_leaves_nothing(world: World) -> None:
    warm = pair(world)
    creating = spawn(world.sandboxes.create(KEY, SPEC), "create")
    await asyncio.sleep(0)  # it is known, and its start has not begun
    await world.sandboxes.end(KEY)
    with pytest.raises(SessionError):
        await creating
    await until(lambda: not any(each.alive for each in warm))


async def test_a_client_that_leaves_while_a_sandbox_is_created_harms_nothing(world: World) -> None:
    creating = spawn(world.sandboxes.create(KEY, SPEC), "create")
    await asyncio.sleep(0)
    creating.cancel()
    await asyncio.wait({creating})
    sandbox = world.sandboxes.get(KEY)
    assert (await run(await sandbox.default_session("python"), "1")).state is StateChange.NEW


async def test_a_sandbox_that_cannot_be_recorded_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = pair(world)

    def refuse(_record: object) -> None:
        raise LedgerUnavailable

    monkeypatch.setattr(world.ledger, "keep", refuse)
    with pytest.raises(LedgerUnavailable):
        await world.sandboxes.create(KEY, SPEC)
    assert world.sandboxes.all() == []
    assert not any(each.alive for each in warm)


async def test_half_a_warm_sandbox_leaves_nothing(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world_over(backend, sandboxes=1) as world:
        start = backend.start

        async def refuse_containers(launch: Launch) -> FakeKernel:
            if launch.kernelspec is NO_KERNEL:
                raise StartFailed
            return await start(launch)

        monkeypatch.setattr(backend, "start", refuse_containers)
        world.pool.keep_sandboxes_warm(PYTHON)
        await until(lambda: len(backend.started) == 1 and not backend.alive)
        await until(lambda: backend.workspaces == [])
        assert world.pool.depth() == 0


# -- limits ----------------------------------------------------------------------------------------------------


async def test_the_waiting_kernel_counts_for_nobody_until_a_session_takes_it(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, SPEC)
    assert world.memory.by_tenant()["acme"] == ONE
    await sandbox.default_session("python")
    assert world.memory.by_tenant()["acme"] == 2 * ONE


async def test_the_waiting_kernel_gives_way(backend: FakeBackend) -> None:
    async with world_over(backend, sandboxes=1, pool_max=1, memory=2 * ONE) as world:
        await warmed(world)
        kernel, container = pair(world)
        sandbox = await world.sandboxes.create(KEY, SPEC)
        await write(sandbox, "a", b"kept")
        await world.session("other")
        assert (kernel.alive, container.alive, world.memory.promised) == (False, True, 2 * ONE)
        assert await read(sandbox, "a") == b"kept"


async def test_a_tenant_gets_no_more_memory_this_way(backend: FakeBackend) -> None:
    async with world_over(backend, sandboxes=1, pool_max=1, memory=8 * ONE, share=0.25) as world:
        await warmed(world)
        sandbox = await world.sandboxes.create(KEY, SPEC)
        await world.session()
        with pytest.raises(QuotaExceeded):
            await sandbox.default_session("python")
        await only_one_stays_warm(world)
        with pytest.raises(QuotaExceeded):
            await world.sandboxes.create(SessionKey("acme", "s2"), SPEC)
        await world.sandboxes.create(SessionKey("other", "s2"), SPEC)


async def test_a_kernel_that_nobody_needs_is_ended_after_a_while(world: World) -> None:
    kernel, container = pair(world)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    await write(sandbox, "a", b"kept")
    world.clock.passes(QUIET - 1)
    world.pool.tend()
    assert kernel.alive
    world.clock.passes(1)
    world.pool.tend()
    await until(lambda: not kernel.alive)
    assert container.alive
    assert (await run(await sandbox.default_session("python"), "1")).state is StateChange.NEW
    assert await read(sandbox, "a") == b"kept"


async def test_half_of_one_is_no_stray(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world_over(backend, sandboxes=1, pool_max=1) as world:
        start, go_on = backend.start, asyncio.Event()

        async def start_containers_late(launch: Launch) -> FakeKernel:
            if launch.kernelspec is NO_KERNEL:
                await go_on.wait()
            return await start(launch)

        monkeypatch.setattr(backend, "start", start_containers_late)
        world.pool.keep_sandboxes_warm(PYTHON)
        await until(lambda: len(world.starts.running) == 1)
        await world.strays.sweep()
        world.clock.passes(OWNERLESS_MAX)
        await world.strays.sweep()
        go_on.set()
        await until(lambda: world.pool.depth() == 1)
        assert world.stray == 0


async def test_no_part_of_one_is_a_stray(world: World) -> None:
    await world.sandboxes.create(KEY, SPEC)
    await only_one_stays_warm(world)
    await world.strays.sweep()
    world.clock.passes(OWNERLESS_MAX)
    await world.strays.sweep()
    assert (world.stray, len(world.backend.alive)) == (0, 4)


# -- a gateway that is killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["warm", "created", "used"])
async def test_the_next_gateway_finds_the_sandbox_and_nothing_else(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    first = World(backend, ledger=tmp_path / "ledger.db", sandboxes=1, pool_max=1)
    assert await first.readiness.check()
    await warmed(first)
    kernel, container = pair(first)
    if moment != "warm":
        sandbox = await first.sandboxes.create(KEY, SPEC)
        await write(sandbox, "a", b"kept")
        await only_one_stays_warm(first)
    if moment == "used":
        await run(await sandbox.default_session("python"), "x = 5")
    monkeypatch.setattr(first.pool, "_keep", lambda _: None)  # a gateway that was killed starts nothing
    async with world_over(backend, ledger=tmp_path / "ledger.db") as second:
        expected = {"warm": [], "created": [container], "used": [kernel, container]}[moment]
        assert backend.alive == expected
        if moment == "warm":
            assert backend.workspaces == []
        else:
            again = second.sandboxes.get(KEY)
            assert (again.container, again.loss, await read(again, "a")) == (container, None, b"kept")
            result = await run(await again.default_session("python"), "print(globals().get('x'))")
            assert result.outputs[0]["text"] == ("5\n" if moment == "used" else "None\n")
    await first.pool.close()
    first.ledger.close()
