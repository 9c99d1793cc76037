"""Which sessions are culled, which are kept, and what a returning client gets. The tests set the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from sessions.model.errors import BackendUnavailable, SessionClosed
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionResult, SessionKey, SessionSpec, StateChange, Status
from sessions.session.session import Session
from sessions.session.states import State
from sessions.upkeep.culler import Culler
from tests.fakes import World, run, until

SLEEP = "import time; time.sleep(60)"
IDLE_TIMEOUT = SessionSpec().idle_timeout
KEY = SessionKey("acme", "s1")


@pytest.fixture
def culler(world: World) -> Culler:
    return Culler(world.registry, world.sandboxes)


def gone(world: World, session: Session) -> bool:
    return session.state is State.CLOSED and session not in world.registry.all()


# -- which sessions are culled ---------------------------------------------------------------------------------


async def test_an_idle_session_is_ended(world: World, culler: Culler, session: Session) -> None:
    world.clock.passes(IDLE_TIMEOUT)
    assert await culler.sweep() == 1
    assert gone(world, session)
    assert (world.backend.alive, world.backend.workspaces) == ([], [])


async def test_a_session_just_below_its_idle_timeout_is_kept(world: World, culler: Culler, session: Session) -> None:
    world.clock.passes(IDLE_TIMEOUT - 0.001)
    assert await culler.sweep() == 0
    assert session.state is State.IDLE


async def test_an_execution_resets_the_idle_time(world: World, culler: Culler, session: Session) -> None:
    for _ in range(5):
        world.clock.passes(IDLE_TIMEOUT - 1)
        assert await culler.sweep() == 0
        await run(session, "1")
    world.clock.passes(IDLE_TIMEOUT)
    assert await culler.sweep() == 1


async def test_get_or_create_resets_the_idle_time(world: World, culler: Culler, session: Session) -> None:
    world.clock.passes(IDLE_TIMEOUT)
    await world.registry.get_or_create(session.key)
    assert await culler.sweep() == 0


async def test_a_session_with_a_connected_channel_client_is_kept_longer(world: World, session: Session) -> None:
    culler = Culler(world.registry, world.sandboxes, connected_timeout=3 * IDLE_TIMEOUT)
    client = session.channels.subscribe("c")
    world.clock.passes(2 * IDLE_TIMEOUT)
    assert await culler.sweep() == 0
    assert Culler(world.registry, world.sandboxes).reason_to_end(session) is not None  # without the longer timeout
    session.channels.leave(client)
    assert culler.reason_to_end(session) is not None
    session.channels.subscribe("c")
    world.clock.passes(IDLE_TIMEOUT)
    assert await culler.sweep() == 1


async def test_a_session_that_runs_a_cell_is_kept(world: World, culler: Culler, session: Session) -> None:
    running = spawn(run(session, SLEEP), "client")
    await until(lambda: world.backend.kernel.executed)
    world.clock.passes(100 * IDLE_TIMEOUT)
    assert await culler.sweep() == 0
    await session.interrupt()
    assert (await running).status is Status.INTERRUPTED
    assert await culler.sweep() == 0
    world.clock.passes(IDLE_TIMEOUT)
    assert await culler.sweep() == 1


async def test_a_session_whose_cell_waits_for_its_turn_is_kept(world: World, culler: Culler, session: Session) -> None:
    await session._executions._turn.lock.acquire()
    waiting = spawn(run(session, "1"), "client")
    await asyncio.sleep(0)
    world.clock.passes(IDLE_TIMEOUT)
    assert await culler.sweep() == 0
    session._executions._turn.lock.release()
    assert (await waiting).status is Status.OK


async def waits_for_create(world: World) -> None:
    world.backend.gate.clear()
    await world.session()


async def waits_for_restart(world: World) -> None:
    session = await world.session()
    world.backend.gate.clear()
    await session.restart()


async def waits_for_execute(world: World) -> None:
    session = await world.session()
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    world.backend.gate.clear()
    await run(await world.session(), "1")


@pytest.mark.parametrize("waits", [waits_for_create, waits_for_restart, waits_for_execute])
async def test_a_session_is_kept_while_a_client_waits_for_its_kernel(
    world: World, culler: Culler, waits: Callable[[World], Coroutine[Any, Any, None]]
) -> None:
    client = spawn(waits(world), "client")
    await until(lambda: not world.backend.gate.is_set() and world.backend.asked > len(world.backend.started))
    world.clock.passes(IDLE_TIMEOUT)
    sweep = spawn(culler.sweep(), "sweep")
    await asyncio.sleep(0)
    world.backend.gate.set()
    assert await sweep == 0
    await client
    assert world.registry.get(KEY).alive


async def test_each_session_has_its_own_idle_timeout(world: World, culler: Culler) -> None:
    quick = await world.registry.create(SessionKey("acme", "quick"), SessionSpec(idle_timeout=10))
    slow = await world.registry.create(SessionKey("acme", "slow"), SessionSpec(idle_timeout=1000))
    world.clock.passes(10)
    assert await culler.sweep() == 1
    assert (quick.state, slow.state) == (State.CLOSED, State.IDLE)


async def test_a_dead_session_is_ended_after_its_idle_timeout(world: World, culler: Culler, session: Session) -> None:
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    assert await culler.sweep() == 0
    world.clock.passes(IDLE_TIMEOUT)
    assert await culler.sweep() == 1
    assert world.backend.workspaces == []


async def test_a_session_past_its_maximum_lifetime_is_ended_even_while_it_runs(world: World, session: Session) -> None:
    culler = Culler(world.registry, world.sandboxes, max_lifetime=3600)
    running = spawn(run(session, SLEEP), "client")
    await until(lambda: world.backend.kernel.executed)
    world.clock.passes(3599)
    assert await culler.sweep() == 0
    world.clock.passes(1)
    assert await culler.sweep() == 1
    result = await running
    assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
    assert result.state_reason == "the session reached its maximum lifetime of 3600 s"


async def test_without_a_maximum_lifetime_no_session_is_too_old(world: World, culler: Culler, session: Session) -> None:
    world.clock.passes(10**9)
    session.touch()
    assert await culler.sweep() == 0


async def test_one_sweep_ends_all_idle_sessions_and_no_others(world: World, culler: Culler) -> None:
    old = [await world.session(f"old{number}") for number in range(5)]
    world.clock.passes(IDLE_TIMEOUT)
    young = await world.session("young")
    assert await culler.sweep() == 5
    assert all(gone(world, session) for session in old)
    assert world.registry.all() == [young]


# -- after the culling -----------------------------------------------------------------------------------------


async def test_the_first_result_after_culling_reports_the_loss_and_its_reason(
    world: World, culler: Culler, session: Session
) -> None:
    await run(session, "x = 1")
    world.clock.passes(IDLE_TIMEOUT)
    await culler.sweep()
    back = await world.registry.get_or_create(session.key)
    first, second = await run(back, "print(x)"), await run(back, "1")
    assert (first.status, first.state) == (Status.ERROR, StateChange.LOST)
    assert first.state_reason == "the session was idle for 300 s"
    assert (second.state, second.state_reason) == (StateChange.PRESERVED, None)


# -- races -----------------------------------------------------------------------------------------------------


async def request(world: World, session: Session) -> ExecutionResult:
    """Do what a dialect does with one request."""
    return await run(await world.registry.get_or_create(session.key), "1")


@pytest.mark.parametrize("ticks", range(8))
@pytest.mark.parametrize("sweep_first", [True, False])
async def test_an_execution_during_a_sweep_gets_its_session_or_a_new_one(
    world: World,
    culler: Culler,
    session: Session,
    ticks: int,
    sweep_first: bool,  # noqa: FBT001
) -> None:
    async def later(work: object) -> object:
        for _ in range(ticks):
            await asyncio.sleep(0)
        return await work  # type: ignore[misc]

    world.clock.passes(IDLE_TIMEOUT)
    sweep, client = culler.sweep(), request(world, session)
    culled, result = await (
        asyncio.gather(sweep, later(client)) if sweep_first else _reversed(asyncio.gather(client, later(sweep)))
    )
    assert isinstance(result, ExecutionResult)
    assert result.status is Status.OK
    assert result.state is (StateChange.LOST if culled else StateChange.NEW)
    assert len(world.backend.alive) == len(world.registry.all()) == 1


async def _reversed(both: asyncio.Future[tuple[object, object]]) -> tuple[object, object]:
    one, other = await both
    return other, one


async def test_executing_in_a_culled_session_raises_session_closed(
    world: World, culler: Culler, session: Session
) -> None:
    world.clock.passes(IDLE_TIMEOUT)
    await culler.sweep()
    with pytest.raises(SessionClosed):
        async with session.execute(ExecuteRequest("1")):
            pass


async def test_a_session_that_a_client_ends_during_the_sweep_is_not_culled(
    world: World, culler: Culler, session: Session
) -> None:
    world.clock.passes(IDLE_TIMEOUT)
    ended, culled = await asyncio.gather(world.registry.end(session.key), culler.sweep())
    assert (ended, culled) == (None, 0)


# -- the periodic sweep ----------------------------------------------------------------------------------------


async def test_the_culler_sweeps_again_and_again(world: World, culler: Culler, session: Session) -> None:
    watching = spawn(culler.run(0.001), "culler")
    await asyncio.sleep(0.01)
    assert session.state is State.IDLE
    world.clock.passes(IDLE_TIMEOUT)
    await until(lambda: gone(world, session))
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


async def test_the_culler_continues_when_a_session_could_not_be_ended(
    world: World, culler: Culler, session: Session
) -> None:
    watching = spawn(culler.run(0.001), "culler")
    world.backend.failures["kill"] = BackendUnavailable()
    with capture_logs() as logs:
        world.clock.passes(IDLE_TIMEOUT)
        await until(lambda: logs and logs[-1].get("task") == "culler")
    world.backend.failures.clear()
    await world.backend.kernel.kill()  # as a real backend does later
    await world.pool.delete_workspace(world.backend.workspaces[0])
    next_one = await world.session("s2")
    world.clock.passes(IDLE_TIMEOUT)
    await until(lambda: gone(world, next_one))
    watching.cancel()
    await asyncio.wait({watching})


@pytest.mark.parametrize("failure", [BackendUnavailable(), RuntimeError("a defect")])
async def test_a_workspace_that_cannot_be_deleted_does_not_stop_the_culling(
    world: World, culler: Culler, session: Session, failure: Exception
) -> None:
    other = await world.session("s2")
    world.backend.failures["delete_workspace"] = failure
    world.clock.passes(IDLE_TIMEOUT)
    with capture_logs():
        assert await culler.sweep() == 2
    assert gone(world, session)
    assert gone(world, other)
    assert world.backend.alive == []
    world.backend.failures.clear()
