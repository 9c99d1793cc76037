"""A gateway takes over after a kill: kernels that still run are kept, and every loss is reported."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.cells.execution import Execution
from sessions.cells.idempotency import Run
from sessions.cells.past_run import Progress
from sessions.debugging.model import DebugState
from sessions.kernels.connection import Connection
from sessions.model.checkpoint import CheckpointMode, OnIdle
from sessions.model.errors import (
    AuditUnavailable,
    BackendUnavailable,
    CellRunsOn,
    CheckpointRefused,
    ConnectionFailed,
    ExecutionCancelled,
    InvalidRequest,
    NotInitialized,
    OutcomeUnknown,
    QuotaExceeded,
    SandboxNotFound,
    SessionNotFound,
    ShuttingDown,
)
from sessions.model.tasks import spawn
from sessions.model.values import (
    DebugPlan,
    ExecuteRequest,
    ExitReason,
    SandboxSpec,
    SessionKey,
    SessionSpec,
    StateChange,
    Status,
)
from sessions.session.executions import STOOD
from sessions.session.session import Session
from sessions.session.states import State
from sessions.upkeep.culler import Culler
from sessions.upkeep.recovery import NOTE, NOTE_CUT
from tests.fakes import (
    OUT_OF_MEMORY,
    PYTHON,
    Cell,
    FakeBackend,
    World,
    background,
    busy,
    exported,
    idle,
    run,
    stands,
    started,
    stream,
    until,
    world_over,
)

KEY = SessionKey("acme", "s1")
SLEEP = "import time; time.sleep(60)"

Successor = Callable[..., Awaitable[World]]


@pytest.fixture
async def first(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[World]:
    """The gateway that is killed."""
    world = World(backend, ledger=tmp_path / "ledger.db")
    assert await world.readiness.check()
    yield world
    world.ledger.close()


@asynccontextmanager
async def successor(first: World, tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    """Start the gateway that follows a killed one: it knows only what the ledger records."""
    async with world_over(first.backend, ledger=tmp_path / "ledger.db", **settings) as world:
        yield world


async def submit(session: Session, code: str, **request: Any) -> Run:
    """Run a cell that no client waits for."""
    return await session.submit(ExecuteRequest(code, **request))


async def test_a_session_continues_with_its_variables(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await run(session, "x = 41")
    kernel = first.backend.kernel
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        result = await run(session, "print(x + 1)")
        assert (result.status, result.outputs[0]["text"]) == (Status.OK, "42\n")
        assert (result.state, result.state_reason, result.incarnation) == (StateChange.PRESERVED, NOTE, 1)
        assert (await run(session, "1")).state_reason is None  # reported once
        assert second.backend.alive == [kernel]


async def test_a_session_keeps_its_settings_and_its_workspace(first: World, tmp_path: Path) -> None:
    spec = SessionSpec(env={"A": "b"}, idle_timeout=7.0, max_execute_timeout=9.0, cwd="deep/down")
    made = await first.registry.create(KEY, spec)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert (session.spec, session.created_at, session.id) == (spec, made.created_at, made.id)
        assert session.incarnation == 1
        await session.restart()
        assert session.incarnation == 2
        launch = second.backend.kernel.launch
        assert (launch.env, launch.cwd) == ({"A": "b"}, "deep/down")
        assert launch.workspace == second.backend.started[0].launch.workspace  # with the same files


async def test_nothing_moves_the_time_of_creation(first: World, tmp_path: Path) -> None:
    first.backend.keeps_files = True
    session = await first.registry.create(KEY, SessionSpec(on_idle=OnIdle.SLEEP))
    sandbox = await first.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("template", idle_timeout=9000.0))
    made, boxed = session.created_at, sandbox.created_at
    first.ledger.clock = lambda: made + 1000
    await run(session, "x = 1")
    await session.checkpoints.take("one")
    await session.checkpoints.roll_back("one")
    assert session.created_at == made
    await session.restart()
    assert session.created_at == made
    first.clock.passes(3600)
    culler = Culler(first.registry, first.sandboxes, sleep_for=3600.0)
    await culler.sweep()
    await culler.sleep_turns.finished()
    assert (session.state, session.created_at) == (State.ASLEEP, made)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert (session.state, session.created_at) == (State.ASLEEP, made)
        await run(session, "1")
        assert (session.state, session.created_at) == (State.IDLE, made)
        assert second.sandboxes.get(sandbox.key).created_at == boxed


async def test_a_session_whose_kernel_ended_meanwhile_keeps_its_files(first: World, tmp_path: Path) -> None:
    await first.session()
    first.backend.kernel.dies(1)
    (workspace,) = first.backend.workspaces
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "1")).state is StateChange.LOST
        assert second.backend.kernel.launch.workspace == workspace
        assert second.backend.workspaces == [workspace]


async def test_the_memory_of_kernels_that_are_taken_over_counts(first: World, tmp_path: Path) -> None:
    size = SessionSpec().limits.memory
    await first.session()
    sandbox = await first.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("template"))
    await sandbox.create_session("python", "")
    async with successor(first, tmp_path, memory=3 * size) as second:
        assert second.memory.promised == 3 * size
        with pytest.raises(QuotaExceeded):
            await second.session("one-more")
        await second.registry.get(KEY).restart()  # the new kernel takes the place of the old one
        await second.registry.end(KEY)
        assert second.memory.promised == 2 * size
    assert second.memory.promised == 0


async def test_all_sessions_continue_and_other_kernels_are_reaped(first: World, tmp_path: Path) -> None:
    for number in range(10):
        await run(await first.session(f"s{number}"), f"x = {number}")
    await first.registry.end(SessionKey("acme", "s9"), "it was idle")
    for _ in range(2):  # warm or half-started kernels, of no session
        await first.backend.start(Launch(PYTHON))
    async with successor(first, tmp_path) as second:
        assert len(second.backend.alive) == 9
        texts = [(await run(await second.session(f"s{number}"), "print(x)")).outputs[0]["text"] for number in range(9)]
        assert texts == [f"{number}\n" for number in range(9)]
        result = await run(await second.session("s9"), "1")
        assert (result.state, result.state_reason) == (StateChange.LOST, "it was idle")


async def test_a_kernel_that_ended_meanwhile_is_reported(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.kernel.dies(1)
    async with successor(first, tmp_path) as second:
        result = await run(second.registry.get(KEY), "print('x' in dir())")
        assert (result.state, result.incarnation) == (StateChange.LOST, 2)
        assert result.state_reason
        assert result.outputs[0]["text"] == "False\n"


async def test_a_kernel_that_has_vanished_is_reported(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.kernel.dies(1)
    first.backend.started.clear()
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert session.state is State.DEAD
        result = await run(session, "1")
        assert (result.state, result.state_reason) == (
            StateChange.LOST,
            "the kernel ended while the gateway was away",
        )


async def test_a_restart_not_reported_yet_is_reported_by_the_next_gateway(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await session.restart()
    async with successor(first, tmp_path) as second:
        result = await run(second.registry.get(KEY), "1")
        assert (result.state, result.state_reason) == (StateChange.RESTARTED, "a restart was asked for")


async def test_a_reported_restart_is_not_reported_again(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await session.restart()
    assert (await run(session, "1")).state is StateChange.RESTARTED
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "1")).state is StateChange.PRESERVED


async def test_a_reported_return_is_not_reported_again(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await run(session, "x = 1")
    await session.checkpoints.take("one")
    await session.checkpoints.roll_back("one")
    assert (await run(session, "x")).state is StateChange.ROLLED_BACK
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "x")).state is StateChange.PRESERVED


# -- a cell that still runs ------------------------------------------------------------------------------------


def script_waiting_cell(backend: FakeBackend, code: str = "held") -> asyncio.Event:
    """Let a cell run until the returned event is set, and then print."""
    go_on = asyncio.Event()

    async def script(cell: Cell) -> None:
        cell.says(busy(), started(cell.code), stream("early\n"))
        await go_on.wait()
        cell.says(stream("late\n"))
        cell.ends()
        cell.says(idle())

    backend.on(code, script)
    return go_on


async def start_cell(first: World, session: Session, code: str) -> asyncio.Task[Any]:
    """Start a cell and return when the kernel has it: a killed gateway would not send it any more."""
    task = spawn(run(session, code), "cell of a gateway that is killed")
    await until(lambda: code in first.backend.kernel.executed)
    return task


async def test_the_next_cell_waits_for_a_running_cell_whose_late_output_is_kept(first: World, tmp_path: Path) -> None:
    session = await first.session()
    go_on = script_waiting_cell(first.backend)
    left = await start_cell(first, session, "held")
    async with successor(first, tmp_path, interrupted={KEY}) as second:
        session = second.registry.get(KEY)
        assert session.state is State.BUSY
        assert session.in_use
        waiting = spawn(run(session, "print(2)"), "next cell")
        await asyncio.sleep(1)
        assert not waiting.done()
        assert second.backend.kernel._inbox.qsize() == 1  # the kernel is asked once, however long the cell runs
        go_on.set()
        result = await waiting
        assert (result.status, result.outputs[0]["text"]) == (Status.OK, "2\n")
        assert (result.state, result.state_reason) == (StateChange.PRESERVED, NOTE_CUT)
        note, *cells = exported(session.transcript)["cells"]
        assert note["source"] == f"**kernel-gateway:** {NOTE_CUT}"
        assert [cell["outputs"][0]["text"] for cell in cells] == ["late\n", "2\n"]
    await asyncio.wait({left})


async def test_a_cell_of_a_gateway_that_is_replaced_runs_on_and_its_client_is_told(
    first: World, tmp_path: Path
) -> None:
    session = await first.session()
    go_on = script_waiting_cell(first.backend)
    left = await start_cell(first, session, "held")
    waiting = spawn(run(session, "print(1)"), "cell that waits for its turn")
    await until(lambda: first.quotas.running == 2)
    session.release_cells()
    with pytest.raises(CellRunsOn):
        await left
    with pytest.raises(ShuttingDown):  # it was not run, so its client can send it again
        await waiting
    with pytest.raises(ShuttingDown):  # no checkpoint is taken of a kernel that runs a cell
        await session.checkpoints.take("one")
    assert (first.open, first.observed) == ({}, [])
    assert session.in_use  # it must not be culled meanwhile
    session.leave()
    await until(lambda: not first.backend.kernel.subscribed.is_set())
    async with successor(first, tmp_path, interrupted={KEY}) as second:
        session = second.registry.get(KEY)
        next_cell = spawn(run(session, "print(2)"), "next cell")
        await second.backend.kernel.subscribed.wait()  # what the kernel says before that is lost
        go_on.set()
        result = await next_cell
        assert (result.state, result.state_reason) == (StateChange.PRESERVED, NOTE_CUT)
        cells = [cell for cell in exported(session.transcript)["cells"] if cell["cell_type"] == "code"]
        assert [cell["outputs"][0]["text"] for cell in cells] == ["late\n", "2\n"]
        assert second.backend.kernel.executed == ["held", "print(2)"]
        assert second.backend.kernel.interrupts == []


async def test_a_cell_that_runs_on_outlives_its_deadline_and_its_client(first: World, tmp_path: Path) -> None:
    session = await first.session()
    go_on = script_waiting_cell(first.backend)
    async with session.execute(ExecuteRequest("held", 0.1)) as execution:
        await until(lambda: "held" in first.backend.kernel.executed)
        session.release_cells()
        seen = [event["type"] async for event in execution]  # what has arrived is delivered, and the stream ends
        assert set(seen) <= {"started", "output"}
        await asyncio.sleep(0.2)  # beyond the deadline
    assert first.backend.kernel.interrupts == []
    go_on.set()
    await until(lambda: session.transcript.cells()[0].outputs)
    session.leave()
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "print(2)")).state is StateChange.PRESERVED


async def test_a_cell_that_stands_at_a_breakpoint_is_interrupted_by_the_next_gateway(
    first: World, tmp_path: Path
) -> None:
    session = await first.session()
    first.backend.on("stand", stands)
    seen = await session.debugger.launch(ExecuteRequest("stand", timeout=600, debug=DebugPlan()))
    assert seen.state is DebugState.STOPPED
    assert first.backend.kernel.breakpoints
    session.release_cells()
    session.leave()
    async with successor(first, tmp_path, interrupted={KEY}) as second:
        kernel = second.backend.kernel
        result = await run(second.registry.get(KEY), "print(2)")
        assert (result.status, result.state) == (Status.OK, StateChange.PRESERVED)
        assert result.state_reason == f"{NOTE_CUT}; {STOOD}"
        assert (len(kernel.interrupts), kernel.breakpoints) == (1, None)


async def test_a_kernel_in_which_a_cell_was_debugged_has_no_checkpoints_with_the_next_gateway_either(
    first: World, tmp_path: Path
) -> None:
    session = await first.session()
    first.backend.on("stand", stands)
    await session.debugger.launch(ExecuteRequest("stand", timeout=600, debug=DebugPlan()))
    await session.debugger.terminate()
    await until(lambda: first.backend.kernel.breakpoints is None)
    session.leave()
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert (await run(session, "1")).state is StateChange.PRESERVED
        with pytest.raises(CheckpointRefused, match="a debugger was started in this kernel"):
            await session.checkpoints.take("one")
        await session.restart()
        assert (await session.checkpoints.take("one")).name == "one"


async def test_a_debugger_of_a_jupyter_client_outlives_the_gateway(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await run(session, "1")
    first.backend.kernel._debug({"command": "initialize"})
    session.leave()
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "print(2)")).state_reason == NOTE
        assert second.backend.kernel.breakpoints == {}


async def test_a_cell_that_has_replied_gets_its_result_when_the_gateway_is_replaced(
    first: World, tmp_path: Path
) -> None:
    async def loses_idle(cell: Cell) -> None:
        cell.says(busy(), started(cell.code), stream("done\n"))
        cell.replies()

    session = await first.session()
    first.backend.on("replied", loses_idle)
    async with session.execute(ExecuteRequest("replied", 60)) as execution:
        assert isinstance(execution, Execution)
        await execution.returned.wait()
        session.release_cells()
        assert (await execution.result()).status is Status.OK
    assert len(first.observed) == 1
    session.leave()
    async with successor(first, tmp_path):
        pass


async def test_a_cell_whose_kernel_has_ended_is_not_said_to_run_on(first: World, tmp_path: Path) -> None:
    session = await first.registry.create(KEY, SessionSpec(checkpoints=CheckpointMode.AUTO))
    async with session.execute(ExecuteRequest(SLEEP, 60)) as execution:
        await until(lambda: SLEEP in first.backend.kernel.executed)
        first.backend.gate.clear()
        first.backend.kernel.dies(3)
        assert isinstance(execution, Execution)
        await execution.returned.wait()  # while the session returns to the checkpoint before the cell
        session.release_cells()
        first.backend.gate.set()
        result = await execution.result()
        assert (result.status, result.state) == (Status.DIED, StateChange.ROLLED_BACK)
    for watch in background("watch kernel"):
        watch.cancel()  # a gateway that is killed returns to no checkpoint when the next one ends the kernel
    async with successor(first, tmp_path):
        pass


async def test_a_cell_runs_on_over_two_restarts(first: World, tmp_path: Path) -> None:
    session = await first.session()
    go_on = script_waiting_cell(first.backend)
    left = await start_cell(first, session, "held")
    session.release_cells()
    session.leave()
    with pytest.raises(CellRunsOn):
        await left
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    assert await second.readiness.check()
    session = second.registry.get(KEY)
    session.release_cells()
    assert not await session.interrupt()  # a stopping gateway interrupts what it waits for
    session.leave()
    second.ledger.close()
    async with successor(first, tmp_path) as third:
        go_on.set()
        assert (await run(third.registry.get(KEY), "print(2)")).state is StateChange.PRESERVED
        assert third.backend.kernel.interrupts == []


async def test_a_cell_that_still_runs_can_be_interrupted(first: World, tmp_path: Path) -> None:
    session = await first.session()
    left = await start_cell(first, session, SLEEP)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert await session.interrupt()
        await until(lambda: session.state is State.IDLE)
        assert (await run(session, "print(3)")).outputs[0]["text"] == "3\n"
        assert not await session.interrupt()
    await asyncio.wait({left})


async def test_a_cell_that_still_runs_is_interrupted_at_its_deadline(first: World, tmp_path: Path) -> None:
    session = await first.registry.create(KEY, SessionSpec(max_execute_timeout=0.1))
    left = await start_cell(first, session, SLEEP)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        await until(lambda: session.state is State.IDLE)
        assert second.backend.alive == [second.backend.started[0]]  # the interrupt was enough
    await asyncio.wait({left})


async def test_a_cell_that_ignores_the_interrupt_at_its_deadline_loses_the_kernel(first: World, tmp_path: Path) -> None:
    first.backend.behaves(heeds_messages=False, heeds_signals=False)
    session = await first.registry.create(KEY, SessionSpec(max_execute_timeout=0.1))
    left = await start_cell(first, session, SLEEP)
    first.backend.behaves(heeds_messages=True, heeds_signals=True)
    async with successor(first, tmp_path) as second:
        result = await run(second.registry.get(KEY), "1")
        assert (result.status, result.state, result.incarnation) == (Status.OK, StateChange.LOST, 2)
        assert "did not end" in str(result.state_reason)
    await asyncio.wait({left})


async def test_a_kernel_that_dies_of_the_cell_that_still_runs_is_reported(first: World, tmp_path: Path) -> None:
    session = await first.session()
    left = await start_cell(first, session, SLEEP)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        waiting = spawn(run(session, "1"), "next cell")
        second.backend.started[0].dies(137, ExitReason.OOM)
        result = await waiting
        assert (result.status, result.state, result.state_reason) == (
            Status.OK,
            StateChange.LOST,
            OUT_OF_MEMORY,
        )
    await asyncio.wait({left})


# -- executions that must not run twice ------------------------------------------------------------------------


async def test_an_execution_with_a_used_idempotency_key_is_not_repeated(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await run(session, "n = 0")
    await run(session, "n += 1", idempotency_key="ended")
    with pytest.raises(InvalidRequest):
        await run(session, "n += 2", idempotency_key="ended")
    left = spawn(run(session, SLEEP, idempotency_key="running"), "cell of a gateway that is killed")
    await until(lambda: session.state is State.BUSY)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        for code, key in (("n += 1", "ended"), (SLEEP, "running")):
            with pytest.raises(OutcomeUnknown):
                await run(session, code, idempotency_key=key)
        with pytest.raises(InvalidRequest):
            await run(session, "n += 2", idempotency_key="ended")
        await session.interrupt()
        assert (await run(session, "print(n)", idempotency_key="another")).outputs[0]["text"] == "1\n"
        await second.registry.end(KEY)  # the keys end with their session
        assert (await run(await second.session(), "print(2)", idempotency_key="ended")).status is Status.OK
    await asyncio.wait({left})


async def test_executions_are_found_by_their_id_with_what_is_known_of_their_end(first: World, tmp_path: Path) -> None:
    session = await first.session()
    done = await submit(session, "print(1)")
    refused = await submit(session, "1", if_incarnation=7, idempotency_key="refused")
    await until(lambda: refused.end and done.end)
    running, cancelled = await submit(session, SLEEP), await submit(session, "2", idempotency_key="cancelled")
    queued = await submit(session, "n = 2")
    await until(lambda: running.progress is Progress.RUNNING)
    session.runs.interrupt(cancelled.id)
    await until(lambda: cancelled.end)
    queued.task.cancel()  # a gateway that is killed runs no more cells
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        known = {each.id: each for each in session.runs.newest_first()}
        assert list(known) == [each.id for each in (queued, cancelled, running, refused, done)]
        assert {name: each.progress for name, each in known.items()} == {
            queued.id: Progress.NOT_RUN,
            cancelled.id: Progress.NOT_RUN,
            running.id: Progress.UNKNOWN,
            done.id: Progress.DONE,
            refused.id: Progress.NOT_RUN,
        }
        assert known[done.id].end == done.end
        assert not known[done.id].outputs_kept
        assert [type(known[each.id].error) for each in (queued, cancelled, refused)] == [
            ShuttingDown,
            ExecutionCancelled,
            SessionNotFound,
        ]
        assert known[queued.id].asked_at == queued.asked_at
        assert isinstance(known[running.id].error, OutcomeUnknown)
        with pytest.raises(OutcomeUnknown):  # its cell may still run
            session.runs.interrupt(running.id)
        session.runs.interrupt(queued.id)
        session.runs.interrupt(done.id)
        assert session.in_use  # the cell of the earlier gateway still runs
        await session.interrupt()
        assert (await run(session, "print(n)", idempotency_key="another")).status is Status.ERROR  # it never ran
        with pytest.raises(ExecutionCancelled):
            await run(session, "2", idempotency_key="cancelled")
        assert (await run(session, "3", idempotency_key="refused")).status is Status.OK
    await until(lambda: running.end)


async def test_an_execution_that_runs_on_is_not_repeated(first: World, tmp_path: Path) -> None:
    session = await first.session()
    go_on = script_waiting_cell(first.backend)
    left = spawn(run(session, "held", idempotency_key="k"), "cell with a key")
    await until(lambda: "held" in first.backend.kernel.executed)
    session.release_cells()
    with pytest.raises(CellRunsOn):
        await left
    session.leave()
    async with successor(first, tmp_path) as second:
        go_on.set()
        with pytest.raises(OutcomeUnknown):
            await run(second.registry.get(KEY), "held", idempotency_key="k")
        assert second.backend.kernel.executed == ["held"]


async def test_a_refused_execution_may_be_repeated(first: World, tmp_path: Path) -> None:
    session = await first.session()
    first.refuses = AuditUnavailable()
    with pytest.raises(AuditUnavailable):
        await run(session, "1", idempotency_key="k")
    first.refuses = None
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "1", idempotency_key="k")).status is Status.OK


# -- before the kernels are taken over -------------------------------------------------------------------------


async def test_before_the_takeover_sessions_can_be_found_but_not_used(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.refuses = BackendUnavailable()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    assert not await second.readiness.check()
    session = second.registry.get(KEY)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await run(session, "1")
        assert session.state is State.STARTING, "nobody knows yet whether its kernel lives"
    first.backend.refuses = None
    assert await second.readiness.check()
    assert (await run(session, "print(x)")).outputs[0]["text"] == "1\n"  # the kernel was not given up meanwhile
    await second.close()


async def test_a_loss_is_also_reported_to_a_client_that_tried_before_the_takeover(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.kernel.dies(1)
    first.backend.started.clear()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    session = second.registry.get(KEY)
    with pytest.raises(NotInitialized):
        await run(session, "1")
    assert await second.readiness.check()
    assert (await run(session, "1")).state is StateChange.LOST
    await second.close()


async def test_before_the_takeover_sessions_can_be_ended(first: World, tmp_path: Path) -> None:
    await first.session()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    await second.registry.end(KEY)
    assert second.registry.all() == []
    assert await second.readiness.check()
    assert (second.backend.alive, second.backend.workspaces) == ([], [])
    await second.close()


async def test_a_session_or_sandbox_ended_during_the_takeover_leaves_nothing(first: World, tmp_path: Path) -> None:
    await first.session()
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    adopt = second.backend.adopt

    async def slow_adopt(kernels: Any, workspaces: Any = (), asleep: Any = ()) -> Any:
        handles = await adopt(kernels, workspaces, asleep)
        await second.registry.end(KEY)
        await second.sandboxes.end(KEY)
        return handles

    second.backend.adopt = slow_adopt  # type: ignore[method-assign]
    assert await second.readiness.check()
    assert (second.backend.alive, second.backend.workspaces) == ([], [])
    await second.close()


async def test_a_container_that_cannot_be_resumed_keeps_no_other_from_being_taken_over(
    first: World, tmp_path: Path
) -> None:
    session = await first.session()
    await run(session, "x = 41")
    sandbox = await first.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("template"))
    await sandbox.pausing.begin()
    first.backend.failures["resume"] = ConnectionFailed()
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "x")).state is StateChange.PRESERVED
        assert second.sandboxes.find(sandbox.key).pausing.paused
        first.backend.failures.clear()


async def test_before_the_takeover_nothing_is_culled(first: World, tmp_path: Path) -> None:
    await first.session()
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    culler = Culler(second.registry, second.sandboxes, max_lifetime=1)
    second.clock.passes(1e6)
    assert await culler.sweep() == 0
    assert await second.readiness.check()
    await until(lambda: second.registry.get(KEY).state is State.IDLE)
    assert await culler.sweep() == 2
    await second.close()


async def test_sessions_taken_over_count_for_their_tenant(first: World, tmp_path: Path) -> None:
    for name in ("a", "b"):
        await first.session(name)
    async with successor(first, tmp_path) as second:
        assert len(second.registry.of("acme")) == 2


async def test_a_session_keeps_its_age_and_is_not_idle_at_first(first: World, tmp_path: Path) -> None:
    first.ledger.clock = lambda: 1000.0
    await first.session()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    assert second.registry.get(KEY).age() > 1e6
    assert second.registry.get(KEY).idle_for() == 0  # no client could use the session meanwhile
    assert await second.readiness.check()
    await second.close()


# -- sandboxes -------------------------------------------------------------------------------------------------


async def test_a_sandbox_continues_with_its_sessions(first: World, tmp_path: Path) -> None:
    sandbox = await first.sandboxes.create(KEY, SandboxSpec("template", env={"A": "b"}))
    context = await sandbox.create_session("python", "")
    await run(context, "x = 5")
    async with successor(first, tmp_path) as second:
        again = second.sandboxes.get(KEY)
        assert (again.spec, again.workspace, again.loss) == (sandbox.spec, sandbox.workspace, None)
        assert [session.key for session in again.sessions()] == [context.key]
        result = await run(again.session(context.key.name), "print(x)")
        assert result.outputs[0]["text"] == "5\n"
        assert (await again.ensure_container()).id == first.backend.started[0].id


async def test_a_sandbox_whose_container_has_ended_reports_the_loss_of_its_files(first: World, tmp_path: Path) -> None:
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    first.backend.kernel.dies(1)
    first.backend.started.clear()
    async with successor(first, tmp_path) as second:
        sandbox = second.sandboxes.get(KEY)
        assert sandbox.loss == "the sandbox's files were lost: its container ended while the gateway was away"
        await sandbox.ensure_container()


async def test_a_sandbox_that_ended_does_not_come_back(first: World, tmp_path: Path) -> None:
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    await first.sandboxes.end(KEY)
    async with successor(first, tmp_path) as second:
        with pytest.raises(SandboxNotFound):
            second.sandboxes.get(KEY)


async def test_before_the_takeover_a_sandbox_can_be_ended_but_not_used(first: World, tmp_path: Path) -> None:
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    with pytest.raises(NotInitialized):
        await second.sandboxes.get(KEY).ensure_container()
    await second.sandboxes.end(KEY)
    assert await second.readiness.check()
    assert (second.backend.alive, second.backend.workspaces) == ([], [])
    await second.close()


async def test_a_session_of_a_removed_language_is_ended_and_reported(first: World, tmp_path: Path) -> None:
    await first.session()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
        database.execute("UPDATE kept SET record = CAST(replace(record, 'python', 'cobol') AS BLOB)")
    async with successor(first, tmp_path) as second:
        with pytest.raises(SessionNotFound):
            second.registry.get(KEY)
        assert second.backend.alive == []
        result = await run(await second.session(), "1")
        assert (result.state, result.state_reason) == (
            StateChange.LOST,
            "there is no language 'cobol' any more",
        )


# -- failures --------------------------------------------------------------------------------------------------


async def test_a_kernel_that_cannot_be_taken_over_is_reported_and_all_others_continue(
    first: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s1", "s2", "s3"):
        await run(await first.session(name), f"x = {name!r}")
    made = Mock(side_effect=[OSError("a defect"), DEFAULT, DEFAULT], wraps=Connection)
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr("sessions.kernels.kernel.Connection", made)
        assert await second.readiness.check()
    assert [entry["task"] for entry in logs if entry["log_level"] == "error"] == ["taking over the kernel of acme:s1"]
    assert len(second.backend.alive) == 2, "a kernel without a connection is ended"
    for name in ("s2", "s3"):
        assert (await run(await second.session(name), "print(x)")).outputs[0]["text"] == f"{name}\n"
    result = await run(await second.session("s1"), "print('x' in dir())")
    assert (result.state, result.outputs[0]["text"]) == (StateChange.LOST, "False\n")
    assert "could not be taken over" in str(result.state_reason)
    await second.close()


async def test_the_takeover_is_retried_after_an_unexpected_error_of_the_backend(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.failures["adopt"] = KeyError("Id")
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    with capture_logs():
        assert not await second.readiness.check()
    first.backend.failures.clear()
    assert await second.readiness.check()
    assert (await run(await second.session(), "print(x)")).outputs[0]["text"] == "1\n"
    await second.close()
