"""The registry: each session is started once and ended once, and only its tenant gets the report of its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson
import pytest

from sessions.model.errors import (
    InvalidRequest,
    QuotaExceeded,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionNotFound,
    ShuttingDown,
    StartFailed,
)
from sessions.model.values import (
    MEMORY_MIN,
    ExecuteRequest,
    ExecutionResult,
    Limits,
    SessionKey,
    SessionSpec,
    StateChange,
    Status,
)
from sessions.session.session import Session
from sessions.session.states import State
from sessions.store import ended
from sessions.tenants.quotas import TenantLimits
from tests.fakes import FakeBackend, World, run, until, world_over

KEY = SessionKey("acme", "s1")


async def next_report(session: Session) -> tuple[StateChange, str | None]:
    """Return what the next result reports about the variables."""
    result = await run(session, "1")
    assert result.status is Status.OK
    return result.state, result.state_reason


# -- creating --------------------------------------------------------------------------------------------------


async def test_a_session_is_made_on_first_use(world: World) -> None:
    session = await world.registry.get_or_create(KEY)
    assert session.state is State.IDLE
    assert session.spec == world.registry.defaults
    assert await world.registry.get_or_create(KEY) is session


async def test_twenty_first_requests_start_one_kernel(world: World) -> None:
    sessions = await asyncio.gather(*(world.registry.get_or_create(KEY) for _ in range(20)))
    assert set(sessions) == {world.registry.get(KEY)}
    assert world.backend.asked == 1


async def test_twenty_first_requests_run_their_cells_in_one_kernel(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=20)) as world:

        async def request(number: int) -> Status:
            session = await world.registry.get_or_create(KEY)
            return (await run(session, f"x{number} = 1")).status

        assert await asyncio.gather(*(request(number) for number in range(20))) == [Status.OK] * 20
        assert (backend.asked, len(backend.kernel.executed)) == (1, 20)


async def test_every_name_of_every_tenant_is_a_separate_session(world: World) -> None:
    keys = [SessionKey(tenant, name) for tenant in ("acme", "umbrella") for name in ("a", "b")]
    sessions = await asyncio.gather(*(world.registry.get_or_create(key) for key in keys))
    assert len(set(sessions)) == world.backend.asked == 4


async def test_a_session_is_created_with_the_given_settings(world: World) -> None:
    spec = SessionSpec(limits=Limits(memory=MEMORY_MIN), env={"A": "1"}, idle_timeout=7)
    session = await world.registry.create(KEY, spec)
    assert session.spec == spec
    launch = world.backend.kernel.launch
    assert (launch.limits, launch.env) == (spec.limits, spec.env)
    assert world.backend.kernel.namespace["env"]["A"] == "1"


async def test_a_session_with_less_memory_than_its_language_needs_is_refused_before_its_start(world: World) -> None:
    with pytest.raises(InvalidRequest, match="javascript needs at least"):
        await world.registry.create(KEY, SessionSpec("js", Limits(memory=MEMORY_MIN)))
    assert (world.registry.all(), world.backend.asked) == ([], 0)


async def test_creating_a_session_that_exists_is_refused(world: World) -> None:
    await world.registry.create(KEY, SessionSpec())
    with pytest.raises(SessionExists) as refused:
        await world.registry.create(KEY, SessionSpec())
    assert refused.value.details == {"session": "s1"}


async def test_a_session_that_is_being_created_exists(world: World) -> None:
    outcomes = await asyncio.gather(
        *(world.registry.create(KEY, SessionSpec()) for _ in range(5)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Session, *[SessionExists] * 4]
    assert world.backend.asked == 1


async def test_an_unknown_language_creates_no_session(world: World) -> None:
    with pytest.raises(InvalidRequest, match="known: "):
        await world.registry.create(KEY, SessionSpec(language="cobol"))
    assert world.registry.all() == []


# -- finding ---------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_oldest_first_and_by_tenant(world: World) -> None:
    keys = [SessionKey(tenant, name) for name in ("b", "a") for tenant in ("umbrella", "acme")]
    for key in keys:
        await world.registry.get_or_create(key)
    assert [session.key for session in world.registry.all()] == keys
    assert [session.key.name for session in world.registry.of("acme")] == ["b", "a"]
    assert world.registry.of("nobody") == []


async def test_another_tenants_session_looks_like_a_missing_one(world: World) -> None:
    await world.registry.get_or_create(KEY)
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
    for attempt in (world.registry.get_or_create, lambda key: world.registry.create(key, SessionSpec())):
        with pytest.raises(StartFailed, match="no room"):
            await attempt(KEY)
        assert world.registry.all() == []
    world.backend.refuses = None
    assert await next_report(await world.registry.create(KEY, SessionSpec())) == (StateChange.NEW, None)


async def test_a_failed_start_is_reported_to_all_waiting_clients(world: World) -> None:
    world.backend.refuses = StartFailed()
    outcomes = await asyncio.gather(*(world.registry.get_or_create(KEY) for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StartFailed] * 5
    assert world.backend.asked == 1
    assert world.registry.all() == []


@pytest.mark.parametrize("behaviour", [{"exits_at_once": 1}, {"answers": False}])
async def test_a_kernel_that_never_answers_leaves_nothing(
    world: World, behaviour: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.kernels.kernel.START_TIMEOUT", 0.05)
    world.backend.behaves(**behaviour)
    with pytest.raises(StartFailed):
        await world.registry.get_or_create(KEY)
    assert (world.registry.all(), world.backend.alive, world.backend.workspaces) == ([], [], [])


async def test_a_start_with_an_unexpected_error_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(world.backend, "start", breaks)
        patch.setattr("sessions.model.tasks.log", _SilentLog())
        with pytest.raises(ZeroDivisionError):
            await world.registry.get_or_create(KEY)
        await until(lambda: world.registry.all() == [])
    assert (await world.registry.get_or_create(KEY)).state is State.IDLE


class _SilentLog:
    """A log that drops the expected failure."""

    def error(self, *_args: object, **_fields: object) -> None:
        pass


async def test_a_client_that_leaves_does_not_stop_the_start(world: World) -> None:
    world.backend.gate.clear()
    starting = [asyncio.gather(world.registry.get_or_create(KEY)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for client in starting:
        client.cancel()
        with suppress(asyncio.CancelledError):
            await client
    world.backend.gate.set()
    assert await next_report(await world.registry.get_or_create(KEY)) == (StateChange.NEW, None)
    assert world.backend.asked == 1


# -- quotas ----------------------------------------------------------------------------------------------------


async def test_a_tenant_has_a_limited_number_of_sessions_and_an_end_frees_one(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=2)) as world:
        await world.session("a")
        await world.session("b")
        world.clock.passes(100)
        world.registry.get(SessionKey("acme", "b")).touch()
        with pytest.raises(QuotaExceeded) as refused:
            await world.session("c")
        # when the first of the two is ended as idle
        assert refused.value.details["retry_after"] == world.registry.defaults.idle_timeout - 100
        await world.session("c", tenant="umbrella")
        await world.registry.end(SessionKey("acme", "a"))
        assert (await world.session("c")).state is State.IDLE


async def test_sessions_that_are_being_created_count(backend: FakeBackend) -> None:
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
    await world.registry.get_or_create(KEY)
    await world.registry.end(KEY)
    assert (world.registry.all(), world.backend.alive, world.backend.workspaces) == ([], [], [])
    with pytest.raises(SessionNotFound):
        world.registry.get(KEY)
    with pytest.raises(SessionNotFound):
        await world.registry.end(KEY)


async def test_the_next_session_of_a_name_reports_once_why_the_last_one_ended(world: World) -> None:
    await run(await world.registry.get_or_create(KEY), "x = 1")
    await world.registry.end(KEY, "the session was idle for 300 s")
    session = await world.registry.get_or_create(KEY)
    assert await next_report(session) == (StateChange.LOST, "the session was idle for 300 s")
    assert await next_report(session) == (StateChange.PRESERVED, None)


async def test_a_new_name_reports_no_loss(world: World) -> None:
    assert await next_report(await world.registry.get_or_create(KEY)) == (StateChange.NEW, None)


async def test_a_session_is_new_until_any_client_has_run_a_cell(world: World) -> None:
    session = await world.registry.get_or_create(KEY)
    subscription = session.channels.subscribe("c")
    header = {"msg_id": "m", "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
    parts = [orjson.dumps(part) for part in (header, {}, {}, {"code": "x = 1"})]
    session.channels.forward(subscription, "shell", header, parts, [])
    assert await next_report(session) == (StateChange.PRESERVED, None)


# -- the session that a client means ---------------------------------------------------------------------------


async def meant(session: Session, session_id: str) -> ExecutionResult:
    async with session.execute(ExecuteRequest("1", if_session=session_id)) as execution:
        return await execution.result()


async def test_a_cell_for_a_session_runs_in_no_later_one_of_the_same_name(world: World) -> None:
    first = await world.registry.get_or_create(KEY)
    assert (await meant(first, first.id)).status is Status.OK
    await world.registry.end(KEY)
    second = await world.registry.get_or_create(KEY)
    assert second.id != first.id
    with pytest.raises(SessionNotFound):
        await meant(second, first.id)
    assert (await meant(second, second.id)).state is StateChange.LOST


async def test_a_cell_for_a_session_does_not_run_when_its_variables_are_gone(world: World) -> None:
    session = await world.registry.get_or_create(KEY)
    await meant(session, session.id)
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    with pytest.raises(SessionNotFound, match="variables are gone"):
        await meant(session, session.id)
    cause = "The kernel has ended with exit code 1; its variables are lost"
    assert await next_report(session) == (StateChange.LOST, cause)  # the refusal was no report
    assert (await meant(session, session.id)).status is Status.OK


@pytest.mark.parametrize("change", [StateChange.RESTARTED, StateChange.ROLLED_BACK])
async def test_a_cell_for_a_session_does_not_run_with_other_variables_than_those_it_means(
    world: World, change: StateChange
) -> None:
    session = await world.registry.get_or_create(KEY)
    await session.checkpoints.take("one")
    await meant(session, session.id)
    await (session.restart() if change is StateChange.RESTARTED else session.checkpoints.roll_back("one"))
    with pytest.raises(SessionNotFound, match="variables are gone"):
        await meant(session, session.id)
    assert (await next_report(session))[0] is change
    assert (await meant(session, session.id)).status is Status.OK


async def test_an_ended_session_that_is_looked_up_tells_why_it_ended(world: World) -> None:
    await world.registry.get_or_create(KEY)
    await world.registry.end(KEY, "it was idle")
    with pytest.raises(SessionNotFound, match="it was idle"):
        world.registry.get(KEY)


async def test_another_tenants_session_of_the_same_name_reports_no_loss(world: World) -> None:
    await world.registry.get_or_create(KEY)
    await world.registry.end(KEY)
    assert await next_report(await world.session("s1", tenant="umbrella")) == (StateChange.NEW, None)


async def test_a_failed_start_does_not_use_up_the_report_of_a_loss(world: World) -> None:
    await world.registry.get_or_create(KEY)
    await world.registry.end(KEY, "it was idle")
    world.backend.refuses = StartFailed()
    with pytest.raises(StartFailed):
        await world.registry.get_or_create(KEY)
    world.backend.refuses = None
    assert await next_report(await world.registry.get_or_create(KEY)) == (StateChange.LOST, "it was idle")


async def test_the_next_session_of_a_place_reports_once_that_the_gateway_ended_the_last_one(world: World) -> None:
    spec = SessionSpec(place="/home/ada")

    async def started(name: str, tenant: str = "acme") -> Session:
        return await world.registry.create(SessionKey(tenant, name), spec)

    reasons = {"a": "it was idle", "b": "it was old"}
    for name in reasons:
        await started(name)
    for name, reason in reasons.items():
        await world.registry.end(SessionKey("acme", name), reason)
    assert await next_report(await started("theirs", "umbrella")) == (StateChange.NEW, None)
    assert await next_report(await world.session("elsewhere")) == (StateChange.NEW, None)
    world.backend.refuses = StartFailed()
    with pytest.raises(StartFailed):
        await started("next")
    world.backend.refuses = None
    for name, reason in (("next", "it was old"), ("second", "it was idle")):
        told = StateChange.LOST, f"an earlier kernel of /home/ada has ended: {reason}"
        assert await next_report(await started(name)) == told
    assert await next_report(await started("third")) == (StateChange.NEW, None)


async def test_a_client_that_has_ended_its_session_is_not_told_by_the_next_one(world: World) -> None:
    spec = SessionSpec(place="/home/ada")
    await world.registry.create(KEY, spec)
    await world.registry.end(KEY)
    next_one = await world.registry.create(SessionKey(KEY.tenant, "next"), spec)
    assert await next_report(next_one) == (StateChange.NEW, None)


async def test_who_ended_a_session_is_not_read_from_the_reasons_text(world: World) -> None:
    spec = SessionSpec(place="/home/ada")
    by_client, by_gateway = [await world.registry.create(SessionKey(KEY.tenant, name), spec) for name in "ab"]
    await world.registry.end(by_client.key)
    assert by_client.end is not None
    await world.registry.end(by_gateway.key, by_client.end.reason)
    next_one = await world.registry.create(SessionKey(KEY.tenant, "next"), spec)
    told = f"an earlier kernel of /home/ada has ended: {by_client.end.reason}"
    assert await next_report(next_one) == (StateChange.LOST, told)


async def test_a_limited_number_of_ends_is_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "REMEMBERED", 2)
    for number in range(3):
        await world.session(f"s{number}")
        await world.registry.end(SessionKey("acme", f"s{number}"), "ended")
    changes = [(await next_report(await world.session(f"s{number}")))[0] for number in range(3)]
    assert changes == [StateChange.NEW, StateChange.LOST, StateChange.LOST]


async def test_a_session_may_be_ended_while_it_starts(world: World) -> None:
    world.backend.gate.clear()
    starting = asyncio.gather(world.registry.get_or_create(KEY))
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
    first = await world.registry.get_or_create(KEY)
    ending = world.registry.end(KEY)
    second = await world.registry.get_or_create(KEY)
    await ending
    assert second is not first
    assert await next_report(second) == (StateChange.LOST, "the session was ended")


async def test_a_client_that_leaves_does_not_stop_the_end(world: World) -> None:
    await world.registry.get_or_create(KEY)
    world.registry.end(KEY).cancel()
    await until(lambda: not world.backend.alive and not world.backend.workspaces)


async def test_a_registry_that_closes_ends_all_sessions_and_refuses_new_ones(world: World) -> None:
    await world.session("a")
    starting = asyncio.gather(world.session("b"), return_exceptions=True)
    await asyncio.sleep(0)
    await world.registry.close()
    assert (world.registry.all(), world.backend.alive) == ([], [])
    assert isinstance((await starting)[0], SessionError)
    with pytest.raises(ShuttingDown):
        await world.session("c")
