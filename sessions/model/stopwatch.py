"""Measures how long each stage of an operation takes. A stage ends when the next one begins.

The stopwatch of an operation is a context variable. So tasks and threads that begin meanwhile share it, and functions
between them need no argument for it. The code that knows the end of a stage calls `lap`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Protocol


class Operation(StrEnum):
    """An operation that a client waits for until it can use a kernel."""

    #: a new kernel is started plainly
    START = "start"
    #: a new kernel is restored from a golden image, in which its modules are already imported
    RESTORE = "restore"
    #: the kernel of a sleeping session continues
    WAKE = "wake"
    #: a session returns to a checkpoint
    ROLLBACK = "rollback"
    #: a new session begins with a checkpoint of another session
    BRANCH = "branch"


class Stage(StrEnum):
    """A part of an operation."""

    #: the start waits for its turn
    TURN = "turn"
    #: a checkpoint is taken, from which a branch begins
    CHECKPOINT = "checkpoint"
    #: the files of a checkpoint become the disk of a new workspace
    FILES = "files"
    #: the disks of the workspace are made and attached
    VOLUMES = "volumes"
    #: the engine makes the container
    CREATE = "create"
    #: images are decrypted if necessary, the engine mounts the volumes, and the runtime makes the sandbox
    SANDBOX = "sandbox"
    #: the runtime starts the kernel's process, or restores its memory
    RUN = "run"
    #: the gateway connects, and the kernel gives its first answer
    ANSWER = "answer"
    #: the session changes to its new kernel
    CHANGE = "change"


#: called with the seconds of each stage of an operation that has succeeded
Report = Callable[[Operation, Mapping[Stage, float]], None]


class ReportDuration(Protocol):
    """Takes the seconds of one piece of work, and whether it succeeded."""

    def __call__(self, seconds: float, *, succeeded: bool) -> None:
        """Take the duration of the work."""


class _Stopwatch:
    """The stages of one operation. Only one thread or task uses it at a time, because stages follow one another."""

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
    """Measure an operation, and report its stages if it succeeds. The time after the last `lap` is the stage `CHANGE`.

    Inside another operation this has no effect: its stages belong to the outer operation.
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
        watch.runs = False  # tasks that began meanwhile may still run, and must not measure any more
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
    """End a stage, if an operation is being measured. The times of a repeated stage are added.

    Args:
        stage: the stage. It began when the stage before it ended.
        ago: seconds since its end.
    """
    watch = _current.get()
    if watch is not None and watch.runs:
        watch.lap(stage, ago)


def mark_restored() -> None:
    """Count the present start as `Operation.RESTORE`: the new kernel was restored from a golden image."""
    watch = _current.get()
    if watch is not None and watch.operation is Operation.START:
        watch.operation = Operation.RESTORE
