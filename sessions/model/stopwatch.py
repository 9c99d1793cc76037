"""Where the time of an operation goes: its stages, each of which ends where the next one begins.

The stopwatch of an operation is a context variable: tasks that begin meanwhile and the engine's threads have it, too,
and what knows nothing of stages hands nothing along. A stage is noted by whoever knows that it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Protocol


class Operation(StrEnum):
    """What takes time until a kernel can be used."""

    #: a new kernel, started plainly
    START = "start"
    #: a new kernel, from a checkpoint in which its modules are imported
    RESTORE = "restore"
    #: the kernel of a session that sleeps
    WAKE = "wake"
    #: return of a session to a checkpoint
    ROLLBACK = "rollback"
    #: a new session that begins with a checkpoint of another one
    BRANCH = "branch"


class Stage(StrEnum):
    """A part of an operation, named by what is done in it."""

    #: wait for the turn to start
    TURN = "turn"
    #: the checkpoint is taken with which a branch begins
    CHECKPOINT = "checkpoint"
    #: the files of a checkpoint become the disk of a new workspace
    FILES = "files"
    #: the disks of the workspace are made and attached
    VOLUMES = "volumes"
    #: the engine makes the container
    CREATE = "create"
    #: the engine mounts the volumes, and the runtime makes the sandbox; what must be decrypted first is part of it
    SANDBOX = "sandbox"
    #: the runtime starts the kernel's process, or restores its memory
    RUN = "run"
    #: the gateway connects, and the kernel gives its first answer
    ANSWER = "answer"
    #: the session changes to its new kernel
    CHANGE = "change"


#: takes the seconds of each stage of an operation that has succeeded
Report = Callable[[Operation, Mapping[Stage, float]], None]


class ReportDuration(Protocol):
    """Takes the seconds of one piece of work, and whether it succeeded."""

    def __call__(self, seconds: float, *, succeeded: bool) -> None:
        """Take the duration of the work."""


class _Stopwatch:
    """The stages of one operation. One thread or task at a time uses it: stages follow one another."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.stages: dict[Stage, float] = {}
        self.runs = True
        self._since = time.monotonic()

    def lap(self, stage: Stage, ago: float) -> None:
        now = max(self._since, time.monotonic() - ago)
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self._since
        self._since = now


_current: ContextVar[_Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def measured(operation: Operation, report: Report) -> Iterator[None]:
    """Measure an operation. If it succeeds, its stages are reported; what comes after the last one is `CHANGE`.

    Within another operation nothing begins: the stages are that one's.
    """
    outer = _current.get()
    if outer is not None and outer.runs:
        yield
        return
    watch = _Stopwatch(operation)
    token = _current.set(watch)
    try:
        yield
        watch.lap(Stage.CHANGE, 0.0)
        report(watch.operation, watch.stages)
    finally:
        watch.runs = False  # for tasks that began meanwhile and go on
        _current.reset(token)


@contextmanager
def timed(clock: Callable[[], float], report: ReportDuration) -> Iterator[None]:
    """Report how long the block took, also if it failed.

    Args:
        clock: returns seconds.
        report: gets the seconds, and whether the block succeeded.
    """
    begun, succeeded = clock(), False
    try:
        yield
        succeeded = True
    finally:
        report(clock() - begun, succeeded=succeeded)


def lap(stage: Stage, ago: float = 0.0) -> None:
    """Note that a stage has ended, if an operation is being measured. A stage that is repeated counts as one.

    Args:
        stage: the stage; it began when the one before ended.
        ago: seconds since its end.
    """
    watch = _current.get()
    if watch is not None and watch.runs:
        watch.lap(stage, ago)


def restored() -> None:
    """Note that a new kernel has come from a checkpoint."""
    watch = _current.get()
    if watch is not None and watch.operation is Operation.START:
        watch.operation = Operation.RESTORE
