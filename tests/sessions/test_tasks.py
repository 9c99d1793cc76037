"""Background tasks are kept until they end, and their failures are seen."""

from __future__ import annotations

import asyncio
import gc

import pytest
from structlog.testing import capture_logs

from sessions import tasks
from sessions.errors import KernelDied
from sessions.tasks import forever, going_on, spawn, to_the_end, together
from tests.fakes import until


async def fails(error: Exception) -> None:
    raise error


async def test_a_task_is_kept_until_it_ends(nothing_left: None) -> None:
    done = asyncio.Event()
    spawn(done.wait(), "waits")
    gc.collect()
    assert [task.get_name() for task in tasks._running] == ["waits"]
    done.set()
    await asyncio.sleep(0.001)
    assert not tasks._running


async def test_a_failure_is_logged(nothing_left: None) -> None:
    with capture_logs() as logs:
        task = spawn(fails(ZeroDivisionError()), "breaks")
        await asyncio.wait({task})
    assert [(entry["event"], entry["task"]) for entry in logs] == [("background task failed", "breaks")]


async def test_an_answer_is_no_failure(nothing_left: None) -> None:
    with capture_logs() as logs:
        task = spawn(fails(KernelDied()), "answers")
        await asyncio.wait({task})
    assert logs == []
    with pytest.raises(KernelDied):
        await task


async def test_being_cancelled_is_no_failure(nothing_left: None) -> None:
    with capture_logs() as logs:
        task = spawn(asyncio.sleep(60), "sleeps")
        task.cancel()
        await asyncio.wait({task})
    assert logs == []


# -- to the end ------------------------------------------------------------------------------------------------


async def returns_late(seconds: float = 0.02) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_the_end_is_waited_for(nothing_left: None) -> None:
    assert await to_the_end(spawn(returns_late(), "late")) == "done"


async def test_it_is_waited_for_however_often_the_waiting_is_cancelled(nothing_left: None) -> None:
    work = spawn(returns_late(), "late")
    waiting = spawn(to_the_end(work), "waits")
    for _ in range(3):
        await asyncio.sleep(0.001)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.result() == "done"


async def test_a_timeout_around_it_is_still_one(nothing_left: None) -> None:
    work = spawn(returns_late(), "late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await to_the_end(work)
    assert work.done()


async def test_a_failure_comes_through(nothing_left: None) -> None:
    with pytest.raises(KernelDied):
        await to_the_end(spawn(fails(KernelDied()), "fails"))


async def test_work_that_is_cancelled_itself_ends_the_waiting(nothing_left: None) -> None:
    work = spawn(asyncio.sleep(60), "sleeps")
    waiting = spawn(to_the_end(work), "waits")
    await asyncio.sleep(0.001)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# -- over and over ---------------------------------------------------------------------------------------------


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
    """Whether a task ends when it is cancelled."""
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_a_loop_goes_on_after_a_round_that_failed_and_says_whose_it_was(nothing_left: None) -> None:
    rounds = Rounds()
    with capture_logs() as logs:
        task = spawn(forever(rounds, pause=0.001), "works")
        await until(lambda: rounds.done > 4)
        assert await cancelled(task)
    assert {(entry["event"], entry["task"]) for entry in logs} == {("background work failed and goes on", "works")}
    assert all(entry["exc_info"] for entry in logs)


async def test_a_loop_that_fails_does_not_spin(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_not_to_be_survived_is_not() -> None:
    for end in (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        with pytest.raises(end), going_on("anything"):
            raise end


# -- together --------------------------------------------------------------------------------------------------


async def test_all_is_waited_for_when_some_fails(nothing_left: None) -> None:
    late = spawn(returns_late(), "late")
    with pytest.raises(ExceptionGroup) as failed:
        await together(fails(KernelDied("one")), late, fails(KernelDied("two")))
    assert late.done()
    assert [str(failure) for failure in failed.value.exceptions] == ["one", "two"]


async def test_what_all_succeeds_is_no_failure(nothing_left: None) -> None:
    await together(returns_late(), returns_late())
    await together()
