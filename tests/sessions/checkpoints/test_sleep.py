"""Sessions that sleep: what their clients see, and that no failure loses variables or leaves anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.backends.abilities import Ability
from sessions.guest import workspace
from sessions.model.checkpoint import NoRoom, OnIdle, SleepImage
from sessions.model.errors import BackendUnavailable, LedgerUnavailable, QuotaExceeded, SessionNotFound, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import CUT, SandboxSpec, SessionKey, SessionSpec, StateChange
from sessions.session.owner import GAVE_WAY
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.quotas import TenantLimits
from sessions.upkeep.culler import Culler
from tests.fakes import MEMORY as MEMORY_OF_FAKES
from tests.fakes import FakeBackend, World, run, until, world_over

KEY = SessionKey("acme", "s1")
SPEC = SessionSpec(idle_timeout=300.0, on_idle=OnIdle.SLEEP)
MEMORY = SPEC.limits.memory


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    async with world_over(backend, defaults=SPEC, memory=MEMORY) as world:
        yield world
    assert backend.sleep.kept == {}


@pytest.fixture
def culler(world: World) -> Culler:
    return Culler(world.registry, world.sandboxes, sleep_for=3600.0)


async def swept(culler: Culler) -> int:
    """Sweep, wait until no session falls asleep, and return how many sessions were ended."""
    ended = await culler.sweep()
    await culler.sleep_turns.finished()
    return ended


async def asleep(world: World, culler: Culler) -> Session:
    """Return a session with `x = 41` that was idle for too long."""
    session = await world.session()
    await run(session, "x = 41")
    world.clock.passes(301)
    assert await swept(culler) == 0
    assert session.state is State.ASLEEP
    return session


async def test_an_idle_session_sleeps_and_the_next_cell_has_its_variables(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    assert world.backend.alive == []
    assert world.memory.promised == 0
    result = await run(session, "print(x + 1)")
    assert (result.outputs[0]["text"], result.state, session.incarnation) == ("42\n", StateChange.PRESERVED, 1)
    assert world.backend.sleep.kept == {}
    assert await swept(culler) == 0
    assert session.state is State.IDLE


async def test_that_connections_were_cut_is_told_once(world: World, culler: Culler) -> None:
    world.backend.sleep.cuts = True
    session = await asleep(world, culler)
    assert (await workspace.list_files(session, "")).entries == []  # wakes it, and tells nothing about the variables
    world.clock.passes(301)
    await swept(culler)
    assert session.state is State.ASLEEP
    result = await run(session, "print(x)")
    assert (result.state, result.state_reason) == (StateChange.PRESERVED, CUT)
    result = await run(session, "print(x)")
    assert (result.state, result.state_reason) == (StateChange.PRESERVED, None)


async def test_without_the_wish_an_idle_session_is_ended(backend: FakeBackend) -> None:
    async with world_over(backend) as world:
        await world.session()
        world.clock.passes(301)
        assert await Culler(world.registry, world.sandboxes).sweep() == 1


# -- sleep by default ------------------------------------------------------------------------------------------

AUTO = replace(SPEC, on_idle=OnIdle.AUTO)


def culler_of(world: World) -> Culler:
    return Culler(world.registry, world.sandboxes, sleep_for=3600.0)


async def sleeping_by_default(world: World, *names: str) -> list[Session]:
    """Return sessions with `x = 41` that fell asleep one after the other."""
    sessions = []
    for name in names:
        sessions.append(await world.registry.create(SessionKey("acme", name), AUTO))
        await run(sessions[-1], "x = 41")
        world.clock.passes(301)
        await swept(culler_of(world))
    return sessions


async def test_by_default_an_idle_session_sleeps_where_that_is_proven(backend: FakeBackend) -> None:
    async with world_over(backend) as world:
        (session,) = await sleeping_by_default(world, "s1")
        assert session.state is State.ASLEEP
        assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_by_default_an_idle_session_ends_at_once_where_sleep_is_not_proven(backend: FakeBackend) -> None:
    async with world_over(backend) as world:
        backend.sleep.ability = Ability(on=False, detail="no proof")
        await world.registry.create(KEY, AUTO)
        world.clock.passes(301)
        assert await swept(culler_of(world)) == 1
        assert backend.sleep.asked == 0


async def test_by_default_a_session_that_cannot_sleep_ends_when_it_was_idle_twice_as_long(backend: FakeBackend) -> None:
    async with world_over(backend) as world:
        await world.registry.create(KEY, AUTO)
        backend.sleep.refuses = "it has a connection"
        culler = culler_of(world)
        world.clock.passes(301)
        assert await swept(culler) == 0
        world.clock.passes(298)
        assert await swept(culler) == 0
        assert backend.sleep.asked == 2  # it was tried again
        world.clock.passes(2)
        assert await swept(culler) == 1
        with pytest.raises(SessionNotFound, match="could not sleep"):
            world.registry.get(KEY)


async def test_the_longest_sleeper_by_default_gives_way_to_a_new_session(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=2)) as world:
        await sleeping_by_default(world, "s1", "s2")
        await world.session("s3")
        assert [session.key.name for session in world.registry.of("acme")] == ["s2", "s3"]
        await world.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("t"))
        assert [session.key.name for session in world.registry.of("acme")] == ["s3"]
        with pytest.raises(QuotaExceeded):  # nobody sleeps any more
            await world.session("s4")
        await world.registry.end(SessionKey("acme", "s3"))
        result = await run(await world.session("s1"), "1")
        assert (result.state, result.state_reason) == (StateChange.LOST, GAVE_WAY)


async def test_a_session_that_a_client_lets_sleep_gives_way_to_none(backend: FakeBackend) -> None:
    async with world_over(backend, defaults=SPEC, quotas=TenantLimits(sessions=1)) as world:
        await asleep(world, culler_of(world))
        with pytest.raises(QuotaExceeded):
            await world.session("s2")


async def test_a_session_does_not_give_way_to_its_own_branch(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=1)) as world:
        (session,) = await sleeping_by_default(world, "s1")
        with pytest.raises(QuotaExceeded):
            await world.registry.branch(session, SessionKey("acme", "s2"), None)
        assert not session.closed


async def test_on_a_full_disk_the_longest_sleeper_by_default_gives_way_to_the_next(backend: FakeBackend) -> None:
    size = backend.sleep.size = MEMORY_OF_FAKES
    async with world_over(backend, sleep_disk=2 * size) as world:
        _, second, third = await sleeping_by_default(world, "s1", "s2", "s3")
        assert world.registry.of("acme") == [second, third]
        assert (second.state, third.state) == (State.ASLEEP, State.ASLEEP)


async def test_no_sleeper_gives_way_if_that_does_not_make_enough_room(backend: FakeBackend) -> None:
    async with world_over(backend, sleep_disk=MEMORY_OF_FAKES) as world:
        (first,) = await sleeping_by_default(world, "s1")
        backend.sleep.size = MEMORY_OF_FAKES
        world.services.kernel_memory.disk.keep(SleepImage("theirs", MEMORY_OF_FAKES, 0.0, ""), "other")
        (second,) = await sleeping_by_default(world, "s2")
        assert (first.state, second.state) == (State.ASLEEP, State.IDLE)
        assert second.sleep_problem == NoRoom.shown


async def test_a_file_wakes_a_session(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    assert (await workspace.list_files(session, "")).entries == []
    assert session.state is State.IDLE
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_clients_that_come_while_it_falls_asleep_wait_and_find_it_awake(world: World, culler: Culler) -> None:
    session = await world.session()
    await run(session, "x = 41")
    world.clock.passes(301)
    world.backend.sleep.gate.clear()
    sweep = spawn(swept(culler), "sweep")
    await until(lambda: not session.reachable)
    cells = [spawn(run(session, "print(x)"), "cell") for _ in range(2)]
    await asyncio.sleep(0.02)
    world.backend.sleep.gate.set()
    assert [(await cell).outputs[0]["text"] for cell in cells] == ["41\n", "41\n"]
    await sweep
    assert session.incarnation == 1


@pytest.mark.parametrize("method", ["take", "wake"])
async def test_a_failure_of_the_engine_loses_nothing(world: World, culler: Culler, method: str) -> None:
    session = await world.session()
    await run(session, "x = 41")
    world.clock.passes(301)
    if method == "wake":
        await swept(culler)
        world.backend.failures["wake"] = BackendUnavailable()
        with pytest.raises(BackendUnavailable):
            await run(session, "print(x)")
        assert session.state is State.ASLEEP
    else:
        kernel = world.backend.kernel
        sleep = world.backend.sleep
        world.backend.started.clear()  # the backend does not know it any more
        await swept(culler)
        world.backend.started.append(kernel)
        assert (session.state, sleep.kept) == (State.IDLE, {})
    world.backend.failures.clear()
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_full_ledger_loses_nothing(world: World, culler: Culler, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await world.session()
    await run(session, "x = 41")
    world.clock.passes(301)

    def full(_record: object) -> None:
        raise LedgerUnavailable

    monkeypatch.setattr(world.ledger, "keep", full)
    await swept(culler)
    monkeypatch.undo()
    assert (session.state, world.backend.sleep.kept) == (State.IDLE, {})
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_session_whose_image_cannot_be_woken_stays_awake(world: World, culler: Culler) -> None:
    session = await world.session()
    await run(session, "x = 41")
    world.backend.sleep.unproven = 2
    world.clock.passes(301)
    assert await swept(culler) == 0
    assert (session.state, world.backend.sleep.kept, world.backend.sleep.asked) == (State.IDLE, {}, 2)
    assert session.sleep_problem == "its memory was written to disk, and could not be continued from there"
    assert len(world.backend.alive) == 1
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"
    world.clock.passes(301)
    await swept(culler)
    assert (session.state, session.sleep_problem) == (State.ASLEEP, "")


async def test_a_second_image_is_tried_when_the_first_cannot_be_woken(world: World, culler: Culler) -> None:
    world.backend.sleep.unproven = 1
    session = await asleep(world, culler)
    assert world.backend.sleep.asked == 2
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_trial_changes_nothing_in_a_session(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    assert [kernel.executed for kernel in world.backend.started if kernel is not world.backend.started[0]] == [[]]
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_sweep_does_not_wait_for_a_session_that_falls_asleep(backend: FakeBackend) -> None:
    async with world_over(backend, defaults=SPEC) as world:
        culler, session = Culler(world.registry, world.sandboxes), await world.session()
        await world.registry.get_or_create(
            SessionKey("acme", "other"), replace(SPEC, idle_timeout=400.0, on_idle=OnIdle.END)
        )
        world.clock.passes(301)
        backend.sleep.gate.clear()
        assert await culler.sweep() == 0
        await until(lambda: not session.reachable)
        world.clock.passes(100)
        ended = await culler.sweep()
        backend.sleep.gate.set()
        await culler.sleep_turns.finished()
        assert (ended, session.state) == (1, State.ASLEEP)


async def test_a_session_at_its_maximum_lifetime_ends_without_sleep(world: World) -> None:
    await world.session()
    world.clock.passes(301)
    assert await swept(Culler(world.registry, world.sandboxes, max_lifetime=300.0)) == 1
    assert world.backend.sleep.asked == 0


async def test_sessions_that_hang_do_not_keep_those_of_other_tenants_awake(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.upkeep.culler.SLOW", 0.05)
    monkeypatch.setattr("sessions.checkpoints.writing.TRIAL_TIMEOUT", 1.0)
    counted: list[bool] = []
    async with world_over(backend, defaults=SPEC) as world:
        culler = Culler(world.registry, world.sandboxes, on_sleep=counted.append)
        for number in range(20):
            await run(await world.session(f"s{number}", f"evil-{number % 8}"), "hangs = True")
        good = await world.session()
        world.clock.passes(301)
        await culler.sweep()
        await until(lambda: good.state is State.ASLEEP)
        assert counted.count(False) <= 8  # one of each tenant before it at most, and those were not waited for
        culler.sleep_turns.stop()
        await culler.sleep_turns.finished()


async def test_a_session_that_was_never_tried_comes_before_one_of_its_tenant_that_failed(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.checkpoints.writing.TRIAL_TIMEOUT", 0.2)
    counted: list[bool] = []
    async with world_over(backend, defaults=SPEC) as world:
        culler = Culler(world.registry, world.sandboxes, on_sleep=counted.append)
        await run(await world.session("evil"), "hangs = True")
        world.clock.passes(301)
        await swept(culler)
        await world.session("late")
        world.clock.passes(301)
        await swept(culler)
    assert counted == [False, True, False]


async def test_a_kernel_that_hangs_in_its_trial_is_not_tried_a_second_time_at_once(
    world: World, culler: Culler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.checkpoints.writing.TRIAL_TIMEOUT", 0.2)
    session = await world.session()
    await run(session, "hangs = True")
    world.clock.passes(301)
    await swept(culler)
    assert (session.state, world.backend.sleep.asked, world.backend.sleep.kept) == (State.IDLE, 1, {})
    assert session.sleep_problem == "its memory was written to disk, and could not be continued from there"


async def test_attempts_to_sleep_are_made_ever_more_rarely_and_counted(world: World) -> None:
    counted: list[bool] = []
    culler = Culler(world.registry, world.sandboxes, on_sleep=counted.append)
    await world.session()
    world.backend.sleep.refuses = "it has a connection"
    world.clock.passes(300)
    for _ in range(300):
        await swept(culler)
        world.clock.passes(1)
    assert counted == [False] * 3  # at once, after 60 s, and 120 s later
    world.backend.sleep.refuses = ""
    world.clock.passes(240)
    await swept(culler)
    assert counted == [False] * 3 + [True]


async def test_a_session_that_cannot_sleep_is_kept_as_long_as_it_could_sleep_and_then_ended_with_the_reason(
    world: World, culler: Culler
) -> None:
    session = await world.session()
    await run(session, "x = 41")
    world.backend.sleep.refuses = "it has a connection"
    world.clock.passes(301)
    assert await swept(culler) == 0
    asked = world.backend.sleep.asked
    await swept(culler)
    assert world.backend.sleep.asked == asked  # not in every round
    world.clock.passes(3500)
    assert await swept(culler) == 0
    assert session.state is State.IDLE
    world.clock.passes(200)
    await swept(culler)
    with pytest.raises(SessionNotFound, match="could not sleep"):
        world.registry.get(KEY)
    result = await run(await world.session(), "1")
    assert result.state is StateChange.LOST


async def test_where_kernels_cannot_be_written_an_idle_session_stays_awake_and_says_so(
    world: World, culler: Culler
) -> None:
    session = await world.session()
    world.backend.sleep.ability = Ability(on=False, detail="none here")
    world.clock.passes(301)
    assert await swept(culler) == 0
    assert (session.state, world.backend.sleep.asked) == (State.IDLE, 0)
    assert "readyz" in session.sleep_problem


async def test_a_session_that_could_not_sleep_and_is_too_old_ends_with_the_reason_that_it_is_too_old(
    world: World,
) -> None:
    culler = Culler(world.registry, world.sandboxes, sleep_for=3600.0, max_lifetime=4000.0)
    await world.session()
    world.backend.sleep.refuses = "it has a connection"
    world.clock.passes(301)
    assert await swept(culler) == 0
    world.clock.passes(3700)
    assert await swept(culler) == 1
    with pytest.raises(SessionNotFound) as ended:
        world.registry.get(KEY)
    assert "maximum lifetime of 4000 s" in ended.value.message
    assert "sleep" not in ended.value.message


async def test_wakes_are_reported_with_the_time_that_clients_waited(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    world.backend.failures["wake"] = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        await run(session, "x")
    del world.backend.failures["wake"]
    world.backend.gate.clear()
    waking = spawn(run(session, "x"), "wakes")
    await until(lambda: session.state is State.STARTING)
    world.clock.passes(2)
    world.backend.gate.set()
    await waking
    assert world.seen.wakes == [(0.0, False), (2.0, True)]
    world.clock.passes(301)
    await swept(culler)
    world.backend.sleep.damaged = "it is damaged"
    assert (await run(session, "x")).state is StateChange.LOST
    assert world.seen.wakes[2:] == [(0.0, False)]


async def test_attempts_to_wake_are_repeated(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    world.backend.sleep.fails = 2
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_kernel_that_never_wakes_is_reported_as_lost_at_last(
    world: World, culler: Culler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.checkpoints.writing.PAUSE", 0.0)
    session = await asleep(world, culler)
    world.backend.sleep.fails = 9
    for _ in range(2):
        with pytest.raises(StartFailed, match="sleeps"):
            await run(session, "print(x)")
        assert session.state is State.ASLEEP
    result = await run(session, "print('fresh')")
    assert (result.state, session.incarnation) == (StateChange.LOST, 2)
    assert "could not be woken" in str(result.state_reason)


async def test_a_damaged_image_is_reported_as_lost(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    world.backend.sleep.damaged = "its memory on disk is damaged"
    result = await run(session, "print('fresh')")
    assert result.state is StateChange.LOST
    assert result.state_reason == "the session slept, and its kernel could not be woken: its memory on disk is damaged"
    assert (await run(session, "1")).state is StateChange.PRESERVED


async def test_without_memory_for_it_a_session_goes_on_sleeping(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    other = await world.session("other")
    with pytest.raises(QuotaExceeded):
        await run(session, "print(x)")
    assert session.state is State.ASLEEP
    await world.registry.end(other.key)
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_restart_of_a_sleeping_session_gives_a_fresh_kernel(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    await session.restart()
    result = await run(session, "print('x' in globals())")
    assert (result.outputs[0]["text"], result.state) == ("False\n", StateChange.RESTARTED)


async def test_a_restart_while_the_session_wakes_gives_a_fresh_kernel(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    world.backend.gate.clear()
    cell = spawn(run(session, "1"), "cell")  # wakes it
    await until(lambda: session.state is State.STARTING)
    restarting = spawn(session.restart(), "restart")
    await asyncio.sleep(0.02)
    world.backend.gate.set()
    await restarting
    await cell
    result = await run(session, "print('x' in globals())")
    assert (result.outputs[0]["text"], session.incarnation) == ("False\n", 2)
    assert StateChange.RESTARTED in {result.state, (await cell).state}


async def test_a_restart_that_fails_leaves_a_sleeping_session_its_variables(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    world.backend.refuses = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        await session.restart()
    world.backend.refuses = None
    assert session.state is State.ASLEEP
    assert (await run(session, "print(x)")).outputs[0]["text"] == "41\n"


async def test_a_session_sleeps_for_a_limited_time(
    world: World, culler: Culler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asleep(world, culler)
    later = world.ledger.clock() + 3601
    monkeypatch.setattr(world.ledger, "clock", lambda: later)
    assert await swept(culler) == 1
    with pytest.raises(SessionNotFound, match="slept for 36"):
        world.registry.get(KEY)
    await until(lambda: world.backend.sleep.kept == {})


async def test_a_session_sleeps_on_while_the_gateway_is_restarted(backend: FakeBackend, tmp_path: Path) -> None:
    first = World(backend, ledger=tmp_path / "ledger.db", defaults=SPEC)
    assert await first.readiness.check()
    await asleep(first, Culler(first.registry, first.sandboxes))
    second = World(backend, ledger=tmp_path / "ledger.db", defaults=SPEC)
    assert second.registry.get(KEY).state is State.ASLEEP
    assert await second.readiness.check()
    session = second.registry.get(KEY)
    result = await run(session, "print(x)")
    assert (result.outputs[0]["text"], result.state, session.incarnation) == ("41\n", StateChange.PRESERVED, 1)
    assert result.state_reason == "the gateway was restarted while the session slept"
    assert (await run(session, "print(x)")).state_reason is None
    await second.close()
    first.ledger.close()
    assert (backend.sleep.kept, backend.alive, backend.workspaces) == ({}, [], [])


async def test_an_ended_session_leaves_no_image(world: World, culler: Culler) -> None:
    session = await asleep(world, culler)
    await world.registry.end(session.key)
    assert world.backend.sleep.kept == {}


async def test_a_session_that_is_ended_while_it_falls_asleep_leaves_nothing(world: World, culler: Culler) -> None:
    session = await world.session()
    world.clock.passes(301)
    world.backend.sleep.gate.clear()
    sweep = spawn(swept(culler), "sweep")
    await until(lambda: not session.reachable)
    ending = world.registry.end(session.key)
    await asyncio.sleep(0.02)
    world.backend.sleep.gate.set()
    await ending
    await sweep
    assert (world.backend.alive, world.backend.sleep.kept) == ([], {})
