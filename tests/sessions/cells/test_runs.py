"""Executions by id: a client does not wait for them, asks for them later, and can interrupt exactly one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sessions.cells import idempotency
from sessions.cells.idempotency import Run
from sessions.cells.past_run import PastRun, Progress, RunEnd
from sessions.model.checkpoint import CheckpointMode
from sessions.model.errors import (
    ExecutionCancelled,
    ExecutionNotFound,
    InvalidRequest,
    OutcomeUnknown,
    OutOfMemory,
    PolicyViolation,
    QuotaExceeded,
    SessionClosed,
    SessionNotFound,
)
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionResult, ExitReason, SessionKey, StateChange, Status
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.quotas import TenantLimits
from sessions.upkeep.culler import Culler
from tests.fakes import Behaviour, Cell, FakeBackend, World, busy, run, started, stream, until, world_over

COUNTS = "n = globals().get('n', 0) + 1; print(n)"
SLEEP = "import time; time.sleep(60)"


async def submit(session: Session, code: str, **request: Any) -> Run:
    return await session.submit(ExecuteRequest(code, **request))


def text(execution: Run | PastRun) -> str:
    return "".join(output.get("text", "") for output in execution.outputs_so_far())


def result_of(execution: Run | PastRun) -> ExecutionResult:
    assert execution.end is not None
    assert execution.end.result is not None
    return execution.end.result


async def ended(session: Session, execution: Run | PastRun) -> Run | PastRun:
    """Return an execution, as its id finds it, when it has ended."""
    await until(lambda: session.runs.find(execution.id).end)
    return session.runs.find(execution.id)


def executed(world: World) -> list[str]:
    return [code for kernel in world.backend.started for code in kernel.executed]


async def waits(world: World, *texts: str) -> tuple[str, Callable[[], None]]:
    """Return the code of a cell that prints, and waits before each further text; and what lets it continue."""
    turn = asyncio.Semaphore(0)

    async def says(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        for each in texts:
            cell.says(stream(each))
            await turn.acquire()
        cell.ends()

    return world.backend.on("waits", says), turn.release


# -- from the queue to the end ---------------------------------------------------------------------------------


async def test_an_execution_that_nobody_waits_for_shows_its_outputs_so_far_and_then_its_result(
    world: World, session: Session
) -> None:
    code, go_on = await waits(world, "one ", "two")
    first, second = await submit(session, code), await submit(session, COUNTS)
    await until(lambda: text(first) == "one ")
    assert (first.progress, second.progress) == (Progress.RUNNING, Progress.QUEUED)
    assert (first.end, text(second), second.error) == (None, "", None)
    assert session.in_use
    go_on()
    await until(lambda: text(first) == "one two")
    go_on()
    done = await ended(session, first)
    assert (done.progress, result_of(done).status, text(done)) == (Progress.DONE, Status.OK, "one two")
    last = await ended(session, second)
    assert (result_of(last).state, text(last), last.outputs_kept) == (StateChange.PRESERVED, "1\n", True)
    await until(lambda: not session.in_use)


async def test_executions_are_listed_newest_first_and_each_has_an_id_of_its_own(session: Session) -> None:
    submitted = [await submit(session, COUNTS) for _ in range(3)]
    assert [each.id for each in session.runs.newest_first()] == [each.id for each in reversed(submitted)]
    assert len({each.id for each in submitted}) == 3
    with pytest.raises(ExecutionNotFound):
        session.runs.find("another")


async def test_an_idempotency_key_finds_the_execution_whether_its_client_waits_or_not(
    world: World, session: Session
) -> None:
    first = await submit(session, COUNTS, idempotency_key="k")
    assert (await submit(session, COUNTS, idempotency_key="k")) is first
    again = await run(session, COUNTS, idempotency_key="k")
    assert (again.replayed, again.outputs[0]["text"]) == (True, "1\n")
    with pytest.raises(InvalidRequest):
        await submit(session, "print(2)", idempotency_key="k")
    waited = await run(session, "print(3)", idempotency_key="waited")
    listed = next(iter(session.runs.newest_first()))
    assert (text(listed), result_of(listed).execution_count) == ("3\n", waited.execution_count)
    assert executed(world) == [COUNTS, "print(3)"]


async def test_a_deadline_ends_an_execution_that_nobody_waits_for(session: Session) -> None:
    done = await ended(session, await submit(session, SLEEP, timeout=0.05))
    assert result_of(done).status is Status.TIMEOUT


async def test_an_interrupt_of_the_session_ends_the_running_execution_and_the_next_one_runs(
    world: World, session: Session
) -> None:
    first, second = await submit(session, SLEEP), await submit(session, COUNTS)
    await until(lambda: executed(world))
    await session.interrupt()
    assert result_of(await ended(session, first)).status is Status.INTERRUPTED
    assert text(await ended(session, second)) == "1\n"


# -- interrupting one ------------------------------------------------------------------------------------------


async def test_an_interrupted_execution_that_waits_for_its_turn_never_runs_and_the_running_one_continues(
    world: World, session: Session
) -> None:
    code, go_on = await waits(world, "mine")
    running, queued, later = (
        await submit(session, code),
        await submit(session, "print('no')"),
        await submit(session, COUNTS),
    )
    await until(lambda: text(running))
    session.runs.interrupt(queued.id)
    gone = await ended(session, queued)
    assert (gone.progress, type(gone.error)) == (Progress.NOT_RUN, ExecutionCancelled)
    session.runs.interrupt(queued.id)  # again, without effect
    assert running.progress is Progress.RUNNING
    go_on()
    assert result_of(await ended(session, running)).status is Status.OK
    assert text(await ended(session, later)) == "1\n"
    assert executed(world) == [code, COUNTS]
    assert world.quotas.under_way() == 0


async def test_an_execution_that_is_interrupted_before_its_first_step_never_runs(
    world: World, session: Session
) -> None:
    attempt = session.runs.attempt("k", ExecuteRequest(COUNTS), session._executions._run, None)
    (queued,) = session.runs.newest_first()
    session.runs.interrupt(queued.id)
    with pytest.raises(ExecutionCancelled):
        await attempt.result()
    assert executed(world) == []


async def test_an_interrupted_execution_that_runs_ends_and_the_one_behind_it_runs(
    world: World, session: Session
) -> None:
    running, queued = await submit(session, SLEEP), await submit(session, COUNTS)
    await until(lambda: executed(world))
    session.runs.interrupt(running.id)
    assert result_of(await ended(session, running)).status is Status.INTERRUPTED
    assert text(await ended(session, queued)) == "1\n"


async def test_an_interrupt_of_an_execution_that_has_ended_reaches_no_other_cell(
    world: World, session: Session
) -> None:
    done = await ended(session, await submit(session, COUNTS))
    code, go_on = await waits(world, "mine")
    running = await submit(session, code)
    await until(lambda: text(running))
    session.runs.interrupt(done.id)
    go_on()
    assert result_of(await ended(session, running)).status is Status.OK
    assert world.backend.kernel.interrupts == []


async def test_a_client_that_waits_for_a_cancelled_execution_is_told_and_a_retry_runs_nothing(
    world: World, session: Session
) -> None:
    blocking = await submit(session, SLEEP)
    waiting = spawn(run(session, COUNTS, idempotency_key="k"), "waiting")
    await until(lambda: len(list(session.runs.newest_first())) == 2)
    session.runs.interrupt(next(iter(session.runs.newest_first())).id)
    with pytest.raises(ExecutionCancelled):
        await waiting
    for retry in (run, submit):
        with pytest.raises(ExecutionCancelled):
            await retry(session, COUNTS, idempotency_key="k")
    session.runs.interrupt(blocking.id)
    await ended(session, blocking)
    assert executed(world) == [SLEEP]


# -- refusals --------------------------------------------------------------------------------------------------


async def test_a_refusal_that_needs_no_wait_is_told_at_once_and_leaves_no_execution() -> None:
    backend = FakeBackend(Behaviour())
    async with world_over(backend, quotas=TenantLimits(executions=1)) as world:
        session = await world.session()
        running = await submit(session, SLEEP)
        with pytest.raises(QuotaExceeded):
            await submit(session, COUNTS, idempotency_key="k")
        await until(lambda: list(session.runs.newest_first()) == [running])
        session.runs.interrupt(running.id)
        await ended(session, running)
        await until(lambda: not session.in_use)
        assert text(await ended(session, await submit(session, COUNTS, idempotency_key="k"))) == "1\n"
    await backend.close()


async def test_a_later_refusal_is_found_by_the_id_and_its_key_may_be_used_again(world: World, session: Session) -> None:
    running, refused = await submit(session, SLEEP), await submit(session, COUNTS, idempotency_key="k")
    world.refuses = PolicyViolation()
    session.runs.interrupt(running.id)
    found = await ended(session, refused)
    assert (found.progress, type(found.error), text(found)) == (Progress.NOT_RUN, PolicyViolation, "")
    world.refuses = None
    again = await submit(session, COUNTS, idempotency_key="k")
    assert again.id == found.id
    assert text(await ended(session, again)) == "1\n"


async def test_an_execution_is_refused_like_one_that_is_waited_for(session: Session) -> None:
    with pytest.raises(SessionNotFound):
        await submit(session, "1", if_session="another")
    running = await submit(session, SLEEP)
    late = await submit(session, "1", if_incarnation=1)
    await session.restart()
    assert isinstance((await ended(session, late)).error, SessionNotFound)
    assert result_of(await ended(session, running)).status is Status.DIED


# -- a session's life ------------------------------------------------------------------------------------------


async def test_a_session_with_an_execution_that_runs_or_waits_is_not_idle(world: World, session: Session) -> None:
    code, go_on = await waits(world, "")
    running, queued = await submit(session, code), await submit(session, SLEEP)
    for _ in range(2):
        world.clock.passes(10_000)
        assert session.idle_for() == 0
        assert await Culler(world.registry, world.sandboxes).sweep() == 0
        go_on()
        await ended(session, running)
    session.runs.interrupt(queued.id)
    await ended(session, queued)
    await until(lambda: not session.in_use)
    world.clock.passes(10_000)
    assert await Culler(world.registry, world.sandboxes).sweep() == 1


async def test_the_outputs_of_an_execution_are_kept_while_its_session_sleeps(backend: FakeBackend) -> None:
    async with world_over(backend, sleep_disk=10**9) as world:
        session = await world.session()
        done = await ended(session, await submit(session, COUNTS))
        await until(lambda: not session.in_use)
        assert await session.fall_asleep() == ""
        assert text(session.runs.find(done.id)) == "1\n"
        assert session.state is State.ASLEEP
        assert text(await ended(session, await submit(session, COUNTS))) == "2\n"


async def test_the_death_of_the_kernel_is_the_end_of_the_running_execution_and_the_next_one_reports_it(
    world: World, session: Session
) -> None:
    running, queued = await submit(session, SLEEP), await submit(session, COUNTS)
    await until(lambda: executed(world))
    world.backend.kernel.dies(reason=ExitReason.OOM)
    died = result_of(await ended(session, running))
    assert (died.status, type(died.error), died.state) == (Status.DIED, OutOfMemory, StateChange.LOST)
    after = result_of(await ended(session, queued))
    assert (after.status, after.state, after.incarnation) == (Status.OK, StateChange.LOST, 2)


async def test_a_rollback_ends_the_running_execution_and_earlier_ones_are_still_found(backend: FakeBackend) -> None:
    async with world_over(backend, sleep_disk=10**9) as world:
        session = await world.session()
        earlier = await ended(session, await submit(session, COUNTS))
        await session.checkpoints.take("here")
        running = await submit(session, SLEEP)
        await until(lambda: SLEEP in executed(world))
        await session.checkpoints.roll_back("here")
        assert result_of(await ended(session, running)).state is StateChange.ROLLED_BACK
        assert text(session.runs.find(earlier.id)) == "1\n"
        branch = await world.registry.branch(session, SessionKey("acme", "branch"), None)
        assert list(branch.runs.newest_first()) == []


async def test_the_end_of_a_session_ends_its_executions(world: World, session: Session) -> None:
    running, queued = await submit(session, SLEEP), await submit(session, COUNTS)
    await until(lambda: executed(world))
    await world.registry.end(session.key)
    await until(lambda: running.end and queued.end)
    assert isinstance(queued.error, SessionClosed)
    assert result_of(running).status is Status.DIED
    assert list((await world.session()).runs.newest_first()) == []
    assert executed(world) == [SLEEP]


# -- what is kept ----------------------------------------------------------------------------------------------


async def test_the_end_of_an_execution_is_found_when_its_outputs_are_dropped_to_save_memory(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await ended(session, await submit(session, COUNTS, idempotency_key="k"))
    await until(session.runs._drop_oldest)
    found = session.runs.find(first.id)
    assert (found.progress, text(found), found.outputs_kept) == (Progress.DONE, "", False)
    assert replace(result_of(found), outputs=[]) == result_of(first)
    assert found.asked_at == first.asked_at
    with pytest.raises(OutcomeUnknown, match="'ok'"):
        await run(session, COUNTS, idempotency_key="k")
    session.runs.interrupt(first.id)
    monkeypatch.setattr(idempotency, "KEYS_MAX", 1)
    second = await ended(session, await submit(session, COUNTS))
    await until(session.runs._drop_oldest)
    assert [each.id for each in session.runs.newest_first()] == [second.id]


async def test_the_oldest_executions_that_have_ended_are_forgotten_and_running_ones_are_not(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "RUNS_MAX", 2)
    code, go_on = await waits(world, "")
    running = await submit(session, code)
    others = [await submit(session, COUNTS) for _ in range(4)]
    assert len(list(session.runs.newest_first())) == 5
    go_on()
    await ended(session, others[-1])
    await until(lambda: len(list(session.runs.newest_first())) == 2)
    assert [each.id for each in session.runs.newest_first()] == [others[3].id, others[2].id]
    with pytest.raises(ExecutionNotFound):
        session.runs.find(running.id)


@pytest.mark.parametrize("error", [None, OutOfMemory("no room", max=3)])
def test_the_end_of_a_run_is_the_same_after_it_was_written(error: OutOfMemory | None) -> None:
    result = ExecutionResult(
        status=Status.DIED if error else Status.OK,
        duration=1.5,
        state=StateChange.LOST,
        state_reason="why",
        execution_count=None,
        outputs=[],
        incarnation=3,
        error=error,
        output_bytes=7,
    )
    read = RunEnd.decode(RunEnd(12.5, result).encode())
    assert read is not None
    assert read.result is not None
    assert replace(read.result, error=None) == replace(result, error=None)
    found = read.result.error
    assert (found and found.as_dict()) == (error and error.as_dict())
    assert (read.asked_at, read.error) == (12.5, None)


@pytest.mark.parametrize("record", [b"", b"[]", b"{}", b'{"asked_at": 1, "error": {"code": "SB001"}}'])
def test_an_end_that_another_version_has_written_is_not_known(record: bytes) -> None:
    assert RunEnd.decode(record) is None


async def test_a_session_with_automatic_checkpoints_cancels_a_queued_execution(backend: FakeBackend) -> None:
    async with world_over(backend, sleep_disk=10**9) as world:
        spec = replace(world.registry.defaults, checkpoints=CheckpointMode.AUTO)
        session = await world.registry.get_or_create(SessionKey("acme", "auto"), spec)
        running, queued = await submit(session, SLEEP), await submit(session, COUNTS)
        await until(lambda: executed(world))
        session.runs.interrupt(queued.id)
        session.runs.interrupt(running.id)
        assert isinstance((await ended(session, queued)).error, ExecutionCancelled)
        assert result_of(await ended(session, running)).status is Status.INTERRUPTED
        await until(lambda: not session.in_use)
