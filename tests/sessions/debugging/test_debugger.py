"""A debugged cell stands as long as its client acts, and no longer; the kernel's events prove nothing."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext, suppress
from functools import partial

import pytest

from sessions.cells.idempotency import Run
from sessions.debugging import debugger as room
from sessions.debugging.adapter import MARK
from sessions.debugging.model import DebugState, Seen
from sessions.model.errors import CheckpointRefused, DebugRefused, ExecutionTimeout, KernelDied, LedgerUnavailable
from sessions.model.values import DebugPlan, ExecuteRequest, StateChange, Status
from sessions.session.session import Session
from tests.fakes import STANDS, FakeKernel, World, run, stands, until

CODE = "x = 1\nstand()"


async def launched(session: Session, world: World, seconds: float = 30.0) -> tuple[Seen, Run]:
    """Launch a cell that stops, and return what is seen then, and its run."""
    world.backend.on(CODE, stands)
    seen = await session.debugger.launch(ExecuteRequest(CODE, timeout=seconds, debug=DebugPlan()))
    run = session.runs.find(seen.execution)
    assert isinstance(run, Run)
    return seen, run


def due(session: Session) -> float:
    """Return when the cell is ended if nobody acts."""
    timer = session.debugger._idle
    assert timer is not None
    return timer.when()


async def test_a_stopped_cell_shows_its_frames_and_ends_when_it_is_told_to(session: Session, world: World) -> None:
    seen, run = await launched(session, world)
    assert (seen.state, seen.reason) == (DebugState.STOPPED, "breakpoint")
    assert [(frame.name, frame.source, frame.text) for frame in seen.frames] == [("f", "this cell", "x = 1")]
    assert [(one.name, one.value) for one in seen.variables or ()] == [("x", "1")]
    with pytest.raises(DebugRefused, match="already"):
        await session.debugger.launch(ExecuteRequest("1", debug=DebugPlan()))
    assert (await session.debugger.terminate()).state is DebugState.ENDED
    assert (await run.task).status is Status.INTERRUPTED


async def test_a_cell_that_stands_without_a_command_is_ended(
    session: Session, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "ACT_WITHIN", 0.2)
    _, run = await launched(session, world)
    result = await asyncio.wait_for(run.task, 60)
    assert result.status is Status.TIMEOUT
    assert isinstance(result.error, ExecutionTimeout)
    assert "stood for too long" in result.error.message


async def test_a_cell_that_stands_is_ended_at_last_whatever_its_client_does(
    session: Session, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = await launched(session, world)
    monkeypatch.setattr(room, "LONGEST", 0.0)
    await session.debugger.look()
    assert (await asyncio.wait_for(run.task, 60)).status is Status.TIMEOUT


async def test_a_command_renews_the_time_and_no_event_does(session: Session, world: World) -> None:
    _, run = await launched(session, world)
    before = due(session)
    for _ in range(3):
        world.backend.kernel.publish(STANDS, None)
    await asyncio.sleep(0.05)
    assert due(session) == before
    await session.debugger.look()
    assert due(session) > before
    session.debugger.leave()
    await run.task


async def test_the_clock_of_the_deadline_stands_while_the_cell_does(session: Session, world: World) -> None:
    _, run = await launched(session, world, seconds=1.0)
    await asyncio.sleep(1.5)
    assert (await session.debugger.look()).state is DebugState.STOPPED
    assert (await session.debugger.move("continue")).state is not DebugState.NONE  # this kernel stands on
    assert (await asyncio.wait_for(run.task, 60)).status is Status.TIMEOUT


async def test_events_outside_of_a_debugged_cell_mean_nothing(session: Session, world: World) -> None:
    async with session.execute(ExecuteRequest("1")) as execution:
        await execution.result()
    world.backend.kernel.publish(STANDS, None)
    await until(lambda: session.debugger._stop is None)
    assert (await session.debugger.look()).state is DebugState.NONE
    with pytest.raises(DebugRefused):
        await session.debugger.move("next")


async def test_a_session_with_a_debugged_cell_takes_no_checkpoint_and_stays_awake(
    session: Session, world: World
) -> None:
    _, execution = await launched(session, world)
    with pytest.raises(CheckpointRefused, match="a cell is being debugged"):
        await session.checkpoints.take("one")
    with pytest.raises(CheckpointRefused, match="a cell is being debugged"):
        session.checkpoints.branch(None)
    assert await session.fall_asleep() == "it is in use"
    await session.debugger.terminate()
    await execution.task
    with pytest.raises(CheckpointRefused, match="a debugger was started in this kernel"):
        await session.checkpoints.take("one")
    assert await session.fall_asleep() == ""  # which has tried the image
    assert (await run(session, "1")).state is StateChange.PRESERVED
    assert (await session.checkpoints.take("one")).name == "one"


async def test_a_return_to_a_checkpoint_and_a_restart_end_a_cell_that_stands(session: Session, world: World) -> None:
    await run(session, "1")
    await session.checkpoints.take("one")
    for replace in (partial(session.checkpoints.roll_back, "one"), session.restart):
        _, execution = await launched(session, world)
        await replace()
        assert (await execution.task).status is Status.DIED
        assert (await session.debugger.look()).state is DebugState.ENDED
        assert (await run(session, "1")).status is Status.OK


async def test_a_debugger_that_was_not_detached_is_detached_before_the_next_cell(
    session: Session, world: World
) -> None:
    await launched(session, world)
    await session.debugger.terminate()
    kernel = world.backend.kernel
    kernel._debug({"command": "initialize"})
    with pytest.raises(DebugRefused, match="Jupyter"):  # somebody else has attached it
        await debugged(session)
    mark(kernel)
    assert (await debugged(session)).state is DebugState.STOPPED
    session.debugger.leave()


async def test_a_debugged_cell_that_cannot_be_recorded_is_refused_and_changes_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(session, "1")

    def refuse(*_: object) -> None:
        raise LedgerUnavailable

    monkeypatch.setattr(session._slot.record, "_write", refuse)
    with pytest.raises(LedgerUnavailable):
        await debugged(session)
    monkeypatch.undo()
    assert (await session.checkpoints.take("one")).name == "one"


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (b'{"command": "debugInfo"}', False),
        (b'{"command": "initialize"}', True),
        (b'{"command": "initialize", "arguments": NaN}', True),  # which kernels read
    ],
)
async def test_a_kernel_whose_debugger_a_channel_client_has_started_has_no_checkpoints(
    session: Session, content: bytes, *, refused: bool
) -> None:
    client = session.channels.subscribe("")
    await run(session, "1")
    header = {"msg_id": "1", "msg_type": "debug_request", "username": "", "session": "s", "version": "5.3"}
    session.channels.forward(client, "control", header, [json.dumps(header).encode(), b"{}", b"{}", content], [])
    with pytest.raises(CheckpointRefused, match="a debugger was started") if refused else nullcontext():
        await session.checkpoints.take("one")


async def test_the_debugger_of_an_earlier_gateway_is_detached_also_when_its_cell_cannot_be_ended(
    session: Session, world: World
) -> None:
    await run(session, "1")
    kernel = session._slot.kernel
    assert kernel is not None
    kernel.mark_debugged()
    world.backend.kernel._debug({"command": "initialize"})
    mark(world.backend.kernel)
    with suppress(KernelDied):
        async with session.debugger.taking_over(kernel):
            assert world.backend.kernel.breakpoints, "control"
            raise KernelDied
    assert world.backend.kernel.breakpoints is None


def mark(kernel: FakeKernel) -> None:
    """Set the breakpoint by which a gateway knows its debugger."""
    kernel._debug({"command": "setBreakpoints", "arguments": {"source": {"path": MARK}, "breakpoints": [{"line": 1}]}})


async def debugged(session: Session) -> Seen:
    """Launch a cell; raise why it was not run."""
    seen = await session.debugger.launch(ExecuteRequest(CODE, timeout=30.0, debug=DebugPlan()))
    if seen.error is not None:
        raise seen.error
    return seen
