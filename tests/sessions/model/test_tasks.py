"""Background tasks are kept until they end, and their failures are logged."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from structlog.testing import capture_logs

from sessions.model import tasks
from sessions.model.errors import KernelDied
from sessions.model.tasks import ExclusiveWork, forever, gather_all, log_failure, shielded, spawn
from tests.fakes import background, until


async def fails(error: Exception) -> None:
    raise error


async def test_a_task_is_kept_until_it_ends(nothing_left: None) -> None:
    async def waits_alone() -> None:
        await asyncio.get_running_loop().create_future()  # nothing but the task knows of it

    spawn(waits_alone(), "waits")
    await asyncio.sleep(0)
    gc.collect()
    (kept,) = background("waits")
    kept.cancel()
    await asyncio.wait({kept})
    ended = weakref.ref(kept)
    del kept
    gc.collect()
    assert ended() is None


async def test_a_failure_is_logged(nothing_left: None) -> None:
    with capture_logs() as logs:
        task = spawn(fails(ZeroDivisionError()), "breaks")
        await asyncio.wait({task})
    assert [(entry["event"], entry["task"]) for entry in logs] == [("background task failed", "breaks")]


async def test_an_error_of_the_domain_is_not_logged(nothing_left: None) -> None:
    with capture_logs() as logs:
        task = spawn(fails(KernelDied()), "answers")
        await asyncio.wait({task})
    assert logs == []
    with pytest.raises(KernelDied):
        await task


async def test_a_cancellation_is_not_logged(nothing_left: None) -> None:
    with capture_logs() as logs:
        task = spawn(asyncio.sleep(60), "sleeps")
        task.cancel()
        await asyncio.wait({task})
    assert logs == []


# -- shielded tasks --------------------------------------------------------------------------------------------


async def returns_late(seconds: float = 0.02) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_shielded_returns_the_result_of_the_task(nothing_left: None) -> None:
    assert await shielded(spawn(returns_late(), "late")) == "done"


async def test_shielded_waits_for_the_task_however_often_it_is_cancelled(nothing_left: None) -> None:
    work = spawn(returns_late(), "late")
    waiting = spawn(shielded(work), "waits")
    for _ in range(3):
        await asyncio.sleep(0.001)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.result() == "done"


async def test_a_timeout_around_shielded_is_raised_after_the_task_has_ended(nothing_left: None) -> None:
    work = spawn(returns_late(), "late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await shielded(work)
    assert work.done()


async def test_shielded_raises_the_error_of_the_task(nothing_left: None) -> None:
    with pytest.raises(KernelDied):
        await shielded(spawn(fails(KernelDied()), "fails"))


async def test_shielded_ends_when_the_task_itself_is_cancelled(nothing_left: None) -> None:
    work = spawn(asyncio.sleep(60), "sleeps")
    waiting = spawn(shielded(work), "waits")
    await asyncio.sleep(0.001)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# -- endless loops ---------------------------------------------------------------------------------------------


class Rounds:
    """Work of which every second round fails."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.done += 1
        if self.done % 2:
            raise ZeroDivisionError


async def cancelled(task: asyncio.Task[object]) -> bool:
    """Cancel a task and return True if it ended as cancelled."""
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_a_loop_continues_after_a_failed_round_and_logs_the_task(nothing_left: None) -> None:
    rounds = Rounds()
    with capture_logs() as logs:
        task = spawn(forever(rounds, pause=0.001), "works")
        await until(lambda: rounds.done > 4)
        assert await cancelled(task)
    assert {(entry["event"], entry["task"]) for entry in logs} == {("background work failed and continues", "works")}
    assert all(entry["exc_info"] for entry in logs)


async def test_a_loop_pauses_after_a_failed_round(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PAUSE", 3600.0)
    rounds = Rounds()
    with capture_logs() as logs:
        task = spawn(forever(rounds), "works")
        await until(lambda: logs)
        await asyncio.sleep(0.01)
        assert rounds.done == 1
        assert await cancelled(task), "also in its pause"


async def test_a_loop_ends_when_it_is_cancelled_in_the_middle_of_a_round(nothing_left: None) -> None:
    task = spawn(forever(asyncio.Event().wait), "waits")
    await asyncio.sleep(0)
    assert await cancelled(task)


def test_log_failure_raises_interrupts_exits_and_cancellations() -> None:
    for end in (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        with pytest.raises(end), log_failure("anything"):
            raise end


# -- several tasks ---------------------------------------------------------------------------------------------


async def test_gather_all_waits_for_all_when_some_fail(nothing_left: None) -> None:
    late = spawn(returns_late(), "late")
    with pytest.raises(ExceptionGroup) as failed:
        await gather_all(fails(KernelDied("one")), late, fails(KernelDied("two")))
    assert late.done()
    assert [str(failure) for failure in failed.value.exceptions] == ["one", "two"]


async def test_gather_all_raises_nothing_when_all_succeed(nothing_left: None) -> None:
    await gather_all(returns_late(), returns_late())
    await gather_all()


async def test_work_that_is_done_alone_waits_for_other_work_and_outlives_its_caller(nothing_left: None) -> None:
    alone, events = ExclusiveWork("work"), list[str]()

    async def work(name: str) -> str:
        events.append(f"{name} begins")
        await asyncio.sleep(0.005)
        events.append(f"{name} ends")
        return name

    first = spawn(alone.run(lambda: work("first")), "caller")
    second = spawn(alone.run(lambda: work("second")), "caller")
    await until(lambda: events)
    first.cancel()
    assert await second == "second"
    await alone.wait()
    assert events == ["first begins", "first ends", "second begins", "second ends"]
