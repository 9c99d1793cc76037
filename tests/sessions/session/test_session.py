"""A session's states, turns and guarantees, with kernels that die, hang and start late."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from unittest.mock import Mock

import pytest

from sessions.backends.base import Launch
from sessions.cells.idempotency import Run
from sessions.model.errors import ConnectionFailed, KernelDied, QuotaExceeded, SessionClosed, SessionError, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import (
    ExecuteRequest,
    ExecutionResult,
    SessionKey,
    SessionSpec,
    StateChange,
    StateNotice,
    Status,
)
from sessions.session.kernel_slot import KernelSlot
from sessions.session.record import NO_ORIGIN, Identity
from sessions.session.session import Session
from sessions.session.states import MOVES, State
from sessions.tenants.quotas import TenantLimits
from tests.fakes import (
    PYTHON,
    TIMEOUTS,
    Cell,
    FakeBackend,
    World,
    background,
    run,
    stream,
    until,
    world_over,
)

SLEEP = "import time; time.sleep(60)"
EXIT = "import os; os._exit(3)"


async def start_cell(session: Session, world: World, code: str = SLEEP) -> asyncio.Task[Status]:
    """Start a client, and return it when its cell runs."""
    taken_up = len(world.backend.kernel.executed)

    async def client() -> Status:
        return (await run(session, code)).status

    running = spawn(client(), "client")
    await until(lambda: len(world.backend.kernel.executed) > taken_up)
    return running


async def news(session: Session) -> tuple[StateChange, int]:
    """Return the state that the next result reports, and its kernel's incarnation."""
    result = await run(session, "1")
    assert result.status is Status.OK
    return result.state, result.incarnation


# -- states ----------------------------------------------------------------------------------------------------


async def test_a_session_goes_from_idle_to_busy_and_back(world: World, session: Session) -> None:
    states = [session.state]
    running = await start_cell(session, world)
    states.append(session.state)
    await session.interrupt()
    await running
    assert [*states, session.state] == [State.IDLE, State.BUSY, State.IDLE]


async def test_a_session_without_a_kernel_is_dead(session: Session) -> None:
    await run(session, EXIT)
    assert session.state is State.DEAD


async def test_a_session_starts_until_its_kernel_answers(world: World) -> None:
    world.backend.gate.clear()
    starting = asyncio.gather(world.session())
    await asyncio.sleep(0)
    assert world.registry.all()[0].state is State.STARTING
    world.backend.gate.set()
    (session,) = await starting
    assert session.state is State.IDLE


#: the moves by which a new slot comes to each state
WAYS = {
    State.STARTING: [],
    State.IDLE: [State.IDLE],
    State.BUSY: [State.IDLE, State.BUSY],
    State.ASLEEP: [State.ASLEEP],
    State.DEAD: [State.DEAD],
}


def slot_in(world: World, here: State, listener: Mock) -> KernelSlot:
    """Return a slot of its own in a state."""
    identity = Identity(SessionKey("acme", "s1"), SessionSpec(), PYTHON, 0.0)
    slot = KernelSlot(identity, world.services, StateNotice(), NO_ORIGIN, listener)
    for state in WAYS[here]:
        slot.move(state)
    return slot


@pytest.mark.parametrize(("here", "there"), list(itertools.product(WAYS, State)))
async def test_only_the_moves_of_the_table_are_made(world: World, here: State, there: State) -> None:
    slot = slot_in(world, here, Mock(closed=False))
    assert slot.state is here
    if there in MOVES[here] and there is not State.CLOSED:
        slot.move(there)
        assert slot.state is there
    else:
        with pytest.raises(RuntimeError, match=f"session acme:s1 cannot go from {here} to {there}"):
            slot.move(there)
        assert slot.state is here


@pytest.mark.parametrize(("here", "there"), list(itertools.product(WAYS, State)))
async def test_no_move_opens_a_closed_session(world: World, here: State, there: State) -> None:
    listener = Mock(closed=False)
    slot = slot_in(world, here, listener)
    listener.closed = True
    with pytest.raises(RuntimeError, match=f"cannot go from closed to {there}"):
        slot.move(there)
    assert slot.state is State.CLOSED


async def comes_to(here: State, session: Session, world: World) -> None:
    """Bring a session that is idle to a state."""
    match here:
        case State.STARTING:
            await run(session, EXIT)
            world.backend.gate.clear()
            spawn(run(session, "1"), "client")
        case State.BUSY:
            await start_cell(session, world)
        case State.ASLEEP:
            assert await session.fall_asleep() == ""
        case State.DEAD:
            await run(session, EXIT)
    await until(lambda: session.state is here)


@pytest.mark.parametrize("here", WAYS)
async def test_the_end_closes_a_session_in_every_state_and_for_good(
    world: World, session: Session, here: State
) -> None:
    assert State.CLOSED in MOVES[here]
    await comes_to(here, session, world)
    ending = session.close()
    assert session.state is State.CLOSED
    world.backend.gate.set()
    await ending
    await until(lambda: not background("client"))
    assert session.state is State.CLOSED


def test_the_table_has_every_state() -> None:
    assert set(MOVES) == set(State)
    assert not MOVES[State.CLOSED]


# -- turns -----------------------------------------------------------------------------------------------------


async def test_cells_run_one_after_the_other_in_the_order_they_came(world: World, session: Session) -> None:
    codes = [f"n{number} = {number}" for number in range(5)]
    await asyncio.gather(*(run(session, code) for code in codes))
    assert world.backend.kernel.executed == codes


async def test_variables_are_kept_between_cells(session: Session) -> None:
    await run(session, "x = 41")
    result = await run(session, "print(x + 1)")
    assert result.outputs[0]["text"] == "42\n"


async def test_a_cell_cancelled_while_it_waits_is_never_sent(world: World, session: Session) -> None:
    running = await start_cell(session, world)
    waiting = asyncio.gather(run(session, "never"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await session.interrupt()
    await running
    assert await news(session) == (StateChange.PRESERVED, 1)
    assert "never" not in world.backend.kernel.executed


async def test_a_cell_that_is_cancelled_repeatedly_keeps_its_turn_to_the_end(world: World, session: Session) -> None:
    ended: list[str] = []

    async def ends_slowly(cell: Cell) -> None:
        await asyncio.sleep(0.05)
        ended.append("slow")
        cell.ends()

    running = await start_cell(session, world, world.backend.on("slow", ends_slowly))
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0.005)
    following = await run(session, "1")
    assert (following.status, ended) == (Status.OK, ["slow"])
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_waiting_cells_count_as_executions_of_the_tenant(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=2)) as world:
        session = await world.session()
        running = await start_cell(session, world)
        waiting = asyncio.gather(run(session, "1"))
        await asyncio.sleep(0)
        with pytest.raises(QuotaExceeded):
            await run(session, "2")
        await session.interrupt()
        await asyncio.gather(running, waiting)
        assert (await run(session, "2")).status is Status.OK


# -- activity --------------------------------------------------------------------------------------------------


async def test_a_session_is_idle_from_its_last_use_on(world: World, session: Session) -> None:
    world.clock.passes(10)
    assert session.idle_for() == 10
    await run(session, "1")
    assert session.idle_for() == 0
    world.clock.passes(5)
    assert (session.idle_for(), session.age()) == pytest.approx((5, 15), abs=1e-3)


async def test_a_session_is_not_idle_while_a_cell_runs_or_waits(world: World, session: Session) -> None:
    running = await start_cell(session, world)
    world.clock.passes(1000)
    assert session.in_use
    assert session.idle_for() == 0
    await session.interrupt()
    await running
    assert not session.in_use
    assert session.idle_for() == 0


async def test_a_session_is_not_idle_while_a_file_is_transferred(world: World, session: Session) -> None:
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=lambda _argument: b"piece")
    output = session.run_tool("files", "{}")
    assert await anext(output) == b"piece"
    world.clock.passes(1000)
    assert session.idle_for() == 0
    await output.aclose()
    assert session.idle_for() == 0
    world.clock.passes(1)
    assert session.idle_for() == 1


@pytest.mark.parametrize("name", ["interrupt", "restart"])
async def test_an_interrupt_or_a_restart_is_activity(world: World, session: Session, name: str) -> None:
    world.clock.passes(10)
    await getattr(session, name)()
    assert session.idle_for() == 0


async def test_output_outside_of_a_cell_is_no_activity(world: World, session: Session) -> None:
    world.clock.passes(10)
    world.backend.kernel.publish(stream("tick"), None)
    await asyncio.sleep(0.02)
    assert session.idle_for() == 10


# -- the end of a kernel ---------------------------------------------------------------------------------------


async def test_a_loss_is_reported_once(session: Session) -> None:
    assert (await run(session, EXIT)).status is Status.DIED
    after = await run(session, "1")
    assert (after.status, after.state, after.incarnation) == (Status.OK, StateChange.LOST, 2)
    assert after.state_reason
    assert await news(session) == (StateChange.PRESERVED, 2)


async def test_a_kernel_that_ends_between_cells_is_reported_once(world: World, session: Session) -> None:
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    assert await news(session) == (StateChange.LOST, 2)
    assert await news(session) == (StateChange.PRESERVED, 2)


async def test_a_loss_is_reported_to_the_first_waiting_cell(world: World, session: Session) -> None:
    running = await start_cell(session, world)
    waiting = asyncio.gather(*(run(session, str(number)) for number in range(3)))
    await asyncio.sleep(0)
    world.backend.kernel.dies(1)
    assert await running is Status.DIED
    assert [result.state for result in await waiting] == [
        StateChange.LOST,
        StateChange.PRESERVED,
        StateChange.PRESERVED,
    ]
    assert len(world.backend.started) == 2


async def test_a_cell_that_was_never_sent_does_not_use_up_the_report_of_a_loss(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    kernel = await session.settled_kernel()
    with monkeypatch.context() as patch:
        patch.setattr(kernel.connection, "send", _refuse)
        with pytest.raises(ConnectionFailed):
            await run(session, "1")
    assert await news(session) == (StateChange.LOST, 2)


def _refuse(*_args: object) -> str:
    raise ConnectionFailed


async def test_the_next_kernel_has_the_same_workspace(world: World, session: Session) -> None:
    await run(session, EXIT)
    await run(session, "1")
    first, second = world.backend.started
    assert first.workspace == second.workspace
    assert len(world.backend.workspaces) == 1


async def test_a_client_that_leaves_after_a_kernels_death_does_not_affect_others(
    world: World, session: Session
) -> None:
    running = await start_cell(session, world)
    kernel = await session.settled_kernel()
    world.backend.kernel.dies(1)
    while kernel.alive:  # noqa: ASYNC110 - the session must not have handled the end yet, as after `until`
        await asyncio.sleep(0)
    impatient = asyncio.gather(session.settled_kernel())
    await asyncio.sleep(0)
    impatient.cancel()
    async with asyncio.timeout(60):
        assert await running is Status.DIED
    with suppress(asyncio.CancelledError):
        await impatient


async def test_a_failed_start_is_reported_and_tried_again(world: World, session: Session) -> None:
    await run(session, EXIT)
    world.backend.refuses = StartFailed("no room")
    for _ in range(2):
        with pytest.raises(StartFailed, match="no room"):
            await run(session, "1")
        assert session.state is State.DEAD
    world.backend.refuses = None
    assert await news(session) == (StateChange.LOST, 2)


# -- restart ---------------------------------------------------------------------------------------------------


async def test_a_restart_gives_a_fresh_kernel_and_is_reported_once(world: World, session: Session) -> None:
    await run(session, "x = 1")
    await session.restart()
    result = await run(session, "print(x)")
    assert (result.status, result.state, result.incarnation) == (Status.ERROR, StateChange.RESTARTED, 2)
    assert await news(session) == (StateChange.PRESERVED, 2)
    assert len(world.backend.alive) == 1


async def test_a_restart_keeps_the_workspace_and_all_settings(world: World) -> None:
    session = await world.session()
    await session.restart()
    first, second = world.backend.started
    assert first.workspace == second.workspace
    assert replace(first.launch, workspace=None) == replace(second.launch, workspace=None)


async def test_a_dead_session_can_be_restarted(session: Session) -> None:
    await run(session, EXIT)
    await session.restart()
    assert await news(session) == (StateChange.RESTARTED, 2)
    assert await news(session) == (StateChange.PRESERVED, 2)


async def test_a_restart_ends_the_running_cell_and_waiting_cells_run_afterwards(world: World, session: Session) -> None:
    running = await start_cell(session, world)
    waiting = asyncio.gather(*(run(session, str(number)) for number in range(3)))
    await asyncio.sleep(0)
    await session.restart()
    assert await running is Status.DIED
    assert [(result.status, result.state) for result in await waiting] == [
        (Status.OK, StateChange.RESTARTED),
        (Status.OK, StateChange.PRESERVED),
        (Status.OK, StateChange.PRESERVED),
    ]


async def test_a_cell_that_a_restart_ended_reports_the_reason(world: World, session: Session) -> None:
    async with session.execute(ExecuteRequest(SLEEP)) as execution:
        await until(lambda: world.backend.kernel.executed)
        await session.restart()
        result = await execution.result()
    assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
    assert isinstance(result.error, KernelDied)
    assert "restarted" in result.error.message


async def test_a_failed_restart_keeps_the_kernel_and_its_variables(world: World, session: Session) -> None:
    await run(session, "x = 1")
    world.backend.refuses = StartFailed()
    with pytest.raises(StartFailed):
        await session.restart()
    assert (await run(session, "print(x)")).status is Status.OK
    assert await news(session) == (StateChange.PRESERVED, 1)


async def test_concurrent_restarts_run_one_after_the_other(world: World, session: Session) -> None:
    await asyncio.gather(*(session.restart() for _ in range(3)))
    assert len(world.backend.alive) == 1
    change, _ = await news(session)
    assert change is StateChange.RESTARTED


async def test_a_kernel_that_dies_during_a_restart_is_replaced(world: World, session: Session) -> None:
    world.backend.gate.clear()
    restarting = asyncio.gather(session.restart())
    await asyncio.sleep(0.01)
    world.backend.kernel.dies(1)
    await until(lambda: session.state is not State.IDLE)
    world.backend.gate.set()
    await restarting
    assert await news(session) == (StateChange.RESTARTED, 2)
    assert len(world.backend.alive) == 1


async def test_a_cell_during_a_restart_starts_no_second_kernel(world: World, session: Session) -> None:
    world.backend.gate.clear()
    restarting = asyncio.gather(session.restart())
    await asyncio.sleep(0.01)
    world.backend.kernel.dies(1)
    await until(lambda: session.state is not State.IDLE)
    cell = asyncio.gather(run(session, "1"))
    await asyncio.sleep(0.01)
    world.backend.gate.set()
    await restarting
    (result,) = await cell
    assert (result.status, result.state) == (Status.OK, StateChange.RESTARTED)
    assert len(world.backend.alive) == 1


async def test_a_client_that_leaves_does_not_stop_the_restart(world: World, session: Session) -> None:
    world.backend.gate.clear()
    restarting = asyncio.gather(session.restart())
    await asyncio.sleep(0.01)
    restarting.cancel()
    with suppress(asyncio.CancelledError):
        await restarting
    world.backend.gate.set()
    await until(lambda: len(world.backend.started) == 2 and len(world.backend.alive) == 1)
    assert await news(session) == (StateChange.RESTARTED, 2)


# -- the end ---------------------------------------------------------------------------------------------------


async def test_closing_ends_the_kernel_and_deletes_its_files(world: World, session: Session) -> None:
    await session.close()
    assert session.state is State.CLOSED
    assert (world.backend.alive, world.backend.workspaces) == ([], [])


async def test_closing_releases_the_transcript_and_the_kept_results(session: Session) -> None:
    await run(session, "print('much')", idempotency_key="order-66")
    gc.collect()  # what earlier tests have left
    (kept,) = [thing for thing in gc.get_objects() if isinstance(thing, Run)]
    shown: list[weakref.ref[object]] = [weakref.ref(session.transcript), weakref.ref(kept)]
    del kept
    gc.disable()
    try:
        await asyncio.sleep(0.1)
        assert None not in [thing() for thing in shown]
        await session.close()
        await until(lambda: [thing() for thing in shown] == [None, None])
    finally:
        gc.enable()


async def test_a_session_may_be_closed_twice(session: Session) -> None:
    await asyncio.gather(session.close(), session.close())
    await session.close()
    assert session.state is State.CLOSED


async def test_a_closed_session_refuses_all_operations(session: Session) -> None:
    await session.close()
    for attempt in (
        run(session, "1"),
        session.restart(),
        session.settled_kernel(),
        anext(session.run_tool("files", "")),
    ):
        with pytest.raises(SessionClosed):
            await attempt


async def test_closing_ends_the_running_cell_and_refuses_waiting_cells(world: World, session: Session) -> None:
    running = await start_cell(session, world)
    waiting = [asyncio.gather(run(session, str(number))) for number in range(3)]
    await asyncio.sleep(0)
    await session.close("the session was culled")
    assert await running is Status.DIED
    for client in waiting:
        with pytest.raises(SessionClosed):
            await client
    ((_, _, end),) = world.observed
    assert isinstance(end, ExecutionResult)
    assert isinstance(end.error, SessionClosed)
    assert end.state_reason == "the session was culled"


async def test_closing_during_the_start_leaves_nothing(world: World) -> None:
    world.backend.gate.clear()
    starting = asyncio.gather(world.session())
    await asyncio.sleep(0.01)
    closing = asyncio.gather(world.registry.all()[0].close())
    await asyncio.sleep(0.01)
    world.backend.gate.set()
    await closing
    with pytest.raises(SessionClosed):
        await starting
    assert (world.backend.alive, world.backend.workspaces) == ([], [])


async def test_closing_during_a_restart_leaves_nothing(world: World, session: Session) -> None:
    world.backend.gate.clear()
    restarting = asyncio.gather(session.restart())
    await asyncio.sleep(0.01)
    closing = asyncio.gather(session.close())
    await asyncio.sleep(0.01)
    world.backend.gate.set()
    await closing
    assert (world.backend.alive, world.backend.workspaces) == ([], [])
    with pytest.raises(SessionClosed):
        await restarting


# -- any two operations at once --------------------------------------------------------------------------------


async def _execute(session: Session, _world: World) -> None:
    await run(session, "x = 1")


async def _leave(session: Session, _world: World) -> None:
    async with session.execute(ExecuteRequest(SLEEP)):
        await asyncio.sleep(0.002)


async def _vanish(session: Session, _world: World) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.003):
            await run(session, SLEEP)


async def _die(session: Session, _world: World) -> None:
    await run(session, EXIT)


async def _lose_the_kernel(_session: Session, world: World) -> None:
    world.backend.kernel.dies(1)


async def _restart(session: Session, _world: World) -> None:
    await session.restart()


async def _interrupt(session: Session, _world: World) -> None:
    await session.interrupt()


async def _use_a_tool(session: Session, _world: World) -> None:
    async for _ in session.run_tool("files", "{}"):
        pass


async def _close(session: Session, _world: World) -> None:
    await session.close()


Operation = Callable[[Session, World], Awaitable[None]]
OPERATIONS: list[Operation] = [
    _execute,
    _leave,
    _vanish,
    _die,
    _lose_the_kernel,
    _restart,
    _interrupt,
    _use_a_tool,
    _close,
]


@pytest.mark.parametrize("other", OPERATIONS, ids=lambda operation: operation.__name__.strip("_"))
@pytest.mark.parametrize("one", OPERATIONS, ids=lambda operation: operation.__name__.strip("_"))
async def test_any_two_operations_at_once_end_well(backend: FakeBackend, one: Operation, other: Operation) -> None:
    backend.behaves(tool=lambda _argument: b"")
    async with world_over(backend, timeouts=replace(TIMEOUTS, interrupt_step=0.02)) as world:
        for ticks in (0, 3):
            session = await world.session(f"s{ticks}")
            await _together(session, world, one, other, ticks)
            if session.state is State.CLOSED:
                continue
            assert not session.in_use
            await asyncio.sleep(0.002)
            assert len([kernel for kernel in backend.alive if kernel.workspace == _workspace(session, backend)]) <= 1
            assert await _still_works(session)


def _workspace(session: Session, backend: FakeBackend) -> object:
    return backend.root / "workspaces" / str(session.launch.workspace)


async def _together(session: Session, world: World, one: Operation, other: Operation, ticks: int) -> None:
    async def later() -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)
        await other(session, world)

    async with asyncio.timeout(60):
        for outcome in await asyncio.gather(one(session, world), later(), return_exceptions=True):
            assert outcome is None or isinstance(outcome, SessionError)


async def _still_works(session: Session) -> bool:
    for _ in range(2):  # a kernel whose end has not been noticed yet may get the first cell
        result = await run(session, "print('still here')", timeout=2)
        if result.status is Status.OK:
            return True
    return False


async def test_the_launch_contains_the_settings_of_the_session(world: World, session: Session) -> None:
    launch = world.backend.kernel.launch
    assert launch == Launch(
        session.kernelspec,
        session.spec.limits,
        session.spec.env,
        launch.workspace,
        tenant=session.key.tenant,
        session=session.key.name,
    )


# -- the code that runs, and the client's source ---------------------------------------------------------------


@pytest.mark.parametrize("source", [None, "def main(): ..."])
async def test_main_is_called_unless_the_code_calls_it_itself(world: World, source: str | None) -> None:
    session = await world.session()
    await run(session, "def main(): ...", arguments={}, source=source)
    (code,) = world.backend.kernel.executed
    assert ("main(**" in code) == (source is None)
