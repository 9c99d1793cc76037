"""Background tasks that are kept, and whose failure is logged; loops that outlive the failure of one of their rounds.

The event loop keeps only a weak reference to a task, and an exception nobody awaits shows up late or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import structlog

from sessions.errors import SessionError

log = structlog.get_logger()
T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()

#: seconds from a round that failed to the next
PAUSE = 5.0


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run `work` in the background; its failure is logged under `name`."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


@contextmanager
def going_on(name: str) -> Iterator[None]:
    """Go on behind the block when something in it fails, which is logged under `name`. Cancellation passes through."""
    try:
        yield
    except Exception:
        log.exception("background work failed and goes on", task=name)


async def forever(step: Callable[[], Awaitable[object]], pause: float | None = None) -> NoReturn:
    """Do something over and over until cancelled, also after it has failed.

    Args:
        step: one round, which takes its time: nothing else keeps the loop from spinning.
        pause: seconds after a round that failed; None: `PAUSE`.
    """
    task = asyncio.current_task()
    name = task.get_name() if task else ""
    while True:
        ended = False
        with going_on(name):
            await step()
            ended = True
        if not ended:
            await asyncio.sleep(PAUSE if pause is None else pause)


async def together(*work: Awaitable[object]) -> None:
    """Wait until all of it has ended, also when some of it fails.

    Raises:
        ExceptionGroup: of all that has failed.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
        raise ExceptionGroup(f"{len(failures)} of {len(outcomes)} have failed", failures)


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
