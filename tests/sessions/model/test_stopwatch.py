"""The stages of an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from sessions.backends.docker.engine.engine import Engine
from sessions.model.stopwatch import Operation, Stage, lap, mark_restored, measured
from sessions.model.tasks import spawn

Told = list[tuple[Operation, dict[Stage, float]]]


class Reports:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.told: Told = []

    def __call__(self, operation: Operation, stages: Mapping[Stage, float]) -> None:
        self.told.append((operation, dict(stages)))


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_each_stage_ends_where_the_next_one_begins(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 13.0, 16.0, 20.0])
    monkeypatch.setattr("sessions.model.stopwatch.time.monotonic", lambda: next(now))
    with measured(Operation.START, reports):
        lap(Stage.CREATE)
        lap(Stage.RUN)
        lap(Stage.CREATE, ago=0.5)  # a second attempt
        mark_restored()
    assert reports.told == [(Operation.RESTORE, {Stage.CREATE: 3.5, Stage.RUN: 2.0, Stage.CHANGE: 4.5})]


def test_what_fails_is_not_reported(reports: Reports) -> None:
    with pytest.raises(ValueError, match="no"), measured(Operation.WAKE, reports):
        raise ValueError("no")
    lap(Stage.RUN)  # nothing is measured any more
    assert reports.told == []


def test_an_operation_within_another_one_is_a_part_of_it(reports: Reports) -> None:
    with measured(Operation.BRANCH, reports):
        with measured(Operation.START, reports):
            lap(Stage.RUN)
            mark_restored()
        lap(Stage.ANSWER)
    ((operation, stages),) = reports.told
    assert (operation, list(stages)) == (Operation.BRANCH, [Stage.RUN, Stage.ANSWER, Stage.CHANGE])


async def test_threads_of_the_engine_note_stages(reports: Reports) -> None:
    engine = Engine()
    with measured(Operation.START, reports):
        await engine.call(lap, Stage.CREATE)
    await engine.close()
    assert list(reports.told[0][1]) == [Stage.CREATE, Stage.CHANGE]


async def test_work_that_goes_on_after_the_operation_notes_nothing(reports: Reports) -> None:
    ended = asyncio.Event()

    async def later() -> None:
        await ended.wait()
        lap(Stage.RUN)
        with measured(Operation.START, reports):
            lap(Stage.ANSWER)

    with measured(Operation.ROLLBACK, reports):
        task = spawn(later(), "later")
    ended.set()
    await task
    assert [(operation, list(stages)) for operation, stages in reports.told] == [
        (Operation.ROLLBACK, [Stage.CHANGE]),
        (Operation.START, [Stage.ANSWER, Stage.CHANGE]),
    ]
