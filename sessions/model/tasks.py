"""Background tasks that are kept and whose failures are logged; loops that continue after a failed round.

The event loop keeps only a weak reference to a task, and an exception that is not awaited is reported late or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, NoReturn, TypeVar

import structlog

from sessions.model.errors import SessionError

log = structlog.get_logger()
T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()

#: seconds between a failed round and the next one
PAUSE = 5.0


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run `work` in the background, and log its failure under `name`."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


@contextmanager
def log_failure(name: str) -> Iterator[None]:
    """Log a failure in the block under `name`, and continue after the block. Cancellation passes through."""
    try:
        yield
    except Exception:
        log.exception("background work failed and continues", task=name)


async def forever(step: Callable[[], Awaitable[object]], pause: float | None = None) -> NoReturn:
    """Repeat a round until cancelled, also after it has failed.

    Args:
        step: one round, which must take some time: nothing else keeps the loop from spinning.
        pause: seconds after a failed round; None: `PAUSE`.
    """
    task = asyncio.current_task()
    name = task.get_name() if task else ""
    while True:
        ended = False
        with log_failure(name):
            await step()
            ended = True
        if not ended:
            await asyncio.sleep(PAUSE if pause is None else pause)


async def gather_all(*work: Awaitable[object]) -> None:
    """Wait until all of `work` has ended, even when some of it fails.

    Raises:
        ExceptionGroup: when some of it failed, with all failures.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
        raise ExceptionGroup(f"{len(failures)} of {len(outcomes)} have failed", failures)


async def shielded(task: asyncio.Task[T]) -> T:
    """Shield `task` from cancellation; re-raise the cancellation after the task has finished."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, for at most `seconds`, and return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class _Work:
    """Work that goes on when its caller leaves; callers can wait for its end."""

    def __init__(self, name: str) -> None:
        """Begin without work.

        Args:
            name: name of the tasks, for the log.
        """
        self._name = name
        #: the work under way; None: there is none
        self.task: asyncio.Task[Any] | None = None

    async def wait(self) -> None:
        """Wait until no work is under way, whatever its outcome."""
        if self.task is not None:
            await asyncio.wait({self.task})

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        self.task = task = spawn(self._run(work), self._name)
        return task

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await work()
        finally:
            self.task = None


class Shared(_Work, Generic[T]):
    """Work that concurrent callers share: it runs once for all of them."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the work under way; if there is none, begin it."""
        task: asyncio.Task[T] = self.task or self._begin(work)
        return await asyncio.shield(task)


class Alone(_Work):
    """Work that is done alone: callers with other work wait for its end."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of work, which begins when there is no other."""
        while self.task is not None:
            await self.wait()
        return await asyncio.shield(self._begin(work))


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    # A SessionError is an answer to the caller that awaits the task; any other error is a defect that must be logged.
    if error is not None and not isinstance(error, SessionError):
        log.error("background task failed", task=task.get_name(), exc_info=error)
