"""The one map of sessions: each is started once, ended once, and missed only by whom it belonged to."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from sessions import ledger
from sessions.errors import (
    InvalidRequest,
    QuotaExceeded,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionNotFound,
    ShuttingDown,
    StartFailed,
)
from sessions.models import Limits, SessionKey, SessionSpec, StateChange, Status
from sessions.quotas import TenantLimits
from sessions.session import Session
from sessions.states import State
from tests.fakes import FakeBackend, World, run, until, world_over

KEY = SessionKey("acme", "s1")


async def told(session: Session) -> tuple[StateChange, str | None]:
    """What the next cell is told of the variables."""
    result = await run(session, "1")
    assert result.status is Status.OK
    return result.state, result.state_reason


# -- beginning -------------------------------------------------------------------------------------------------


async def test_a_session_is_made_on_first_use(world: World) -> None:
    session = await world.registry.obtain(KEY)
    assert session.state is State.IDLE
    assert session.spec == world.registry.defaults
    assert await world.registry.obtain(KEY) is session


async def test_twenty_first_requests_start_one_kernel(world: World) -> None:
    sessions = await asyncio.gather(*(world.registry.obtain(KEY) for _ in range(20)))
    assert set(sessions) == {world.registry.get(KEY)}
    assert world.backend.asked == 1


async def test_twenty_first_requests_run_their_cells_in_one_kernel(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=20)) as world:

        async def request(number: int) -> Status:
            session = await world.registry.obtain(KEY)
            return (await run(session, f"x{number} = 1")).status

        assert await asyncio.gather(*(request(number) for number in range(20))) == [Status.OK] * 20
        assert (backend.asked, len(backend.kernel.executed)) == (1, 20)


async def test_every_name_is_a_session_of_its_own(world: World) -> None:
    keys = [SessionKey(tenant, name) for tenant in ("acme", "umbrella") for name in ("a", "b")]
    sessions = await asyncio.gather(*(world.registry.obtain(key) for key in keys))
    assert len(set(sessions)) == world.backend.asked == 4


async def test_a_session_may_be_made_to_order(world: World) -> None:
    spec = SessionSpec(limits=Limits(memory=1024), env={"A": "1"}, idle_timeout=7)
    session = await world.registry.create(KEY, spec)
    assert session.spec == spec
    launch = world.backend.kernel.launch
    assert (launch.limits, launch.env) == (spec.limits, spec.env)
    assert world.backend.kernel.namespace["env"]["A"] == "1"


async def test_a_session_is_made_once(world: World) -> None:
    await world.registry.create(KEY, SessionSpec())
    with pytest.raises(SessionExists) as refused:
        await world.registry.create(KEY, SessionSpec())
    assert refused.value.details == {"session": "s1"}


async def test_a_session_that_is_being_made_exists(world: World) -> None:
    outcomes = await asyncio.gather(
        *(world.registry.create(KEY, SessionSpec()) for _ in range(5)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Session, *[SessionExists] * 4]
    assert world.backend.asked == 1


async def test_an_unknown_language_makes_nothing(world: World) -> None:
    with pytest.raises(InvalidRequest, match="known: "):
        await world.registry.create(KEY, SessionSpec(language="cobol"))
    assert world.registry.all() == []


# -- finding ---------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_oldest_first_and_by_tenant(world: World) -> None:
    keys = [SessionKey(tenant, name) for name in ("b", "a") for tenant in ("umbrella", "acme")]
    for key in keys:
        await world.registry.obtain(key)
    assert [session.key for session in world.registry.all()] == keys
    assert [session.key.name for session in world.registry.of("acme")] == ["b", "a"]
    assert world.registry.of("nobody") == []


async def test_another_tenant_s_session_looks_like_none(world: World) -> None:
    await world.registry.obtain(KEY)
    refusals = []
    for key in (SessionKey("umbrella", "s1"), SessionKey("umbrella", "s2")):
        with pytest.raises(SessionNotFound) as refused:
            world.registry.get(key)
        refusals.append(refused.value.message.replace(key.name, "…"))
    assert len(set(refusals)) == 1
    assert world.registry.get(KEY).key == KEY


# -- a start that fails ----------------------------------------------------------------------------------------


async def test_a_start_that_fails_leaves_nothing(world: World) -> None:
    world.backend.refuses = StartFailed("no room")
    for attempt in (world.registry.obtain, lambda key: world.registry.create(key, SessionSpec())):
        with pytest.raises(StartFailed, match="no room"):
            await attempt(KEY)
        assert world.registry.all() == []
    world.backend.refuses = None
    assert await told(await world.registry.create(KEY, SessionSpec())) == (StateChange.PRESERVED, None)


async def test_a_start_that_fails_is_told_to_all_who_wait(world: World) -> None:
    world.backend.refuses = StartFailed()
    outcomes = await asyncio.gather(*(world.registry.obtain(KEY) for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StartFailed] * 5
    assert world.backend.asked == 1
    assert world.registry.all() == []


@pytest.mark.parametrize("behaviour", [{"exits_at_once": 1}, {"answers": False}])
async def test_a_kernel_that_never_answers_leaves_nothing(
    world: World, behaviour: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.kernel.START_TIMEOUT", 0.05)
    world.backend.behaves(**behaviour)
    with pytest.raises(StartFailed):
        await world.registry.obtain(KEY)
    assert (world.registry.all(), world.backend.alive, world.backend.workspaces) == ([], [], [])


async def test_a_start_that_breaks_leaves_nothing_either(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(world.backend, "start", breaks)
        patch.setattr("sessions.tasks.log", _Silence())
        with pytest.raises(ZeroDivisionError):
            await world.registry.obtain(KEY)
        await until(lambda: world.registry.all() == [])
    assert (await world.registry.obtain(KEY)).state is State.IDLE


class _Silence:
    """A log for a failure that is meant."""

    def error(self, *_args: object, **_fields: object) -> None:
        pass


async def test_who_leaves_a_start_does_not_stop_it(world: World) -> None:
    world.backend.gate.clear()
    starting = [asyncio.gather(world.registry.obtain(KEY)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for client in starting:
        client.cancel()
        with suppress(asyncio.CancelledError):
            await client
    world.backend.gate.set()
    assert await told(await world.registry.obtain(KEY)) == (StateChange.PRESERVED, None)
    assert world.backend.asked == 1


# -- quotas ----------------------------------------------------------------------------------------------------


async def test_a_tenant_has_so_many_sessions_and_gets_room_back(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=2)) as world:
        await world.session("a")
        await world.session("b")
        with pytest.raises(QuotaExceeded):
            await world.session("c")
        await world.session("c", tenant="umbrella")
        await world.registry.end(SessionKey("acme", "a"))
        assert (await world.session("c")).state is State.IDLE


async def test_sessions_that_are_being_made_count(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=2)) as world:
        outcomes = await asyncio.gather(*(world.session(f"s{n}") for n in range(5)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Session, Session, *[QuotaExceeded] * 3]
        assert backend.asked == 2


async def test_sessions_that_failed_do_not_count(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=1)) as world:
        backend.refuses = StartFailed()
        for number in range(3):
            with pytest.raises(StartFailed):
                await world.session(f"s{number}")
        backend.refuses = None
        assert (await world.session("last")).state is State.IDLE


# -- ending ----------------------------------------------------------------------------------------------------


async def test_a_session_that_was_ended_is_gone(world: World) -> None:
    await world.registry.obtain(KEY)
    await world.registry.end(KEY)
    assert (world.registry.all(), world.backend.alive, world.backend.workspaces) == ([], [], [])
    with pytest.raises(SessionNotFound):
        world.registry.get(KEY)
    with pytest.raises(SessionNotFound):
        await world.registry.end(KEY)


async def test_who_comes_back_is_told_once_what_became_of_the_session(world: World) -> None:
    await run(await world.registry.obtain(KEY), "x = 1")
    await world.registry.end(KEY, "the session was idle for 300 s")
    session = await world.registry.obtain(KEY)
    assert await told(session) == (StateChange.LOST, "the session was idle for 300 s")
    assert await told(session) == (StateChange.PRESERVED, None)


async def test_one_that_was_never_used_is_not_missed(world: World) -> None:
    assert await told(await world.registry.obtain(KEY)) == (StateChange.PRESERVED, None)


async def test_another_tenant_is_told_nothing(world: World) -> None:
    await world.registry.obtain(KEY)
    await world.registry.end(KEY)
    assert await told(await world.session("s1", tenant="umbrella")) == (StateChange.PRESERVED, None)


async def test_a_start_that_fails_does_not_use_the_news_up(world: World) -> None:
    await world.registry.obtain(KEY)
    await world.registry.end(KEY, "it was idle")
    world.backend.refuses = StartFailed()
    with pytest.raises(StartFailed):
        await world.registry.obtain(KEY)
    world.backend.refuses = None
    assert await told(await world.registry.obtain(KEY)) == (StateChange.LOST, "it was idle")


async def test_only_so_many_ends_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "REMEMBERED", 2)
    for number in range(3):
        await world.session(f"s{number}")
        await world.registry.end(SessionKey("acme", f"s{number}"), "ended")
    changes = [(await told(await world.session(f"s{number}")))[0] for number in range(3)]
    assert changes == [StateChange.PRESERVED, StateChange.LOST, StateChange.LOST]


async def test_a_session_may_be_ended_while_it_starts(world: World) -> None:
    world.backend.gate.clear()
    starting = asyncio.gather(world.registry.obtain(KEY))
    await asyncio.sleep(0.01)
    ending = world.registry.end(KEY)
    with pytest.raises(SessionNotFound):
        world.registry.get(KEY)
    world.backend.gate.set()
    await ending
    with pytest.raises(SessionClosed):
        await starting
    assert (world.backend.alive, world.backend.workspaces) == ([], [])


async def test_a_name_can_be_used_again_while_its_last_session_ends(world: World) -> None:
    first = await world.registry.obtain(KEY)
    ending = world.registry.end(KEY)
    second = await world.registry.obtain(KEY)
    await ending
    assert second is not first
    assert await told(second) == (StateChange.LOST, "the session was ended")


async def test_who_gives_up_waiting_for_an_end_does_not_stop_it(world: World) -> None:
    await world.registry.obtain(KEY)
    world.registry.end(KEY).cancel()
    await until(lambda: not world.backend.alive and not world.backend.workspaces)


async def test_a_registry_that_closes_takes_nobody(world: World) -> None:
    await world.session("a")
    starting = asyncio.gather(world.session("b"), return_exceptions=True)
    await asyncio.sleep(0)
    await world.registry.close()
    assert (world.registry.all(), world.backend.alive) == ([], [])
    assert isinstance((await starting)[0], SessionError)
    with pytest.raises(ShuttingDown):
        await world.session("c")
