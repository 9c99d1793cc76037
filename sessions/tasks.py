"""Background tasks that are kept, and whose failure is logged.

The event loop keeps only a weak reference to a task, and an exception nobody awaits shows up late or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from sessions.errors import SessionError

log = structlog.get_logger()
T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run `work` in the background; its failure is logged under `name`."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


async def to_the_end(task: asyncio.Task[T]) -> T:
    """Wait for `task` however often the waiting is cancelled; it is cancelled when the task has ended."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    # A SessionError is an answer that somebody waits for; anything else is a defect that must not stay unseen.
    if error is not None and not isinstance(error, SessionError):
        log.error("background task failed", task=task.get_name(), exc_info=error)
