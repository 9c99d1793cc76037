"""Background tasks, loops that survive a failed round, and work that several callers wait for.

The event loop keeps only a weak reference to a task, so `spawn` keeps a strong one. An exception that nobody awaits is
reported late or never, so it is logged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
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
    """Repeat a round until the task is cancelled, also after the round has failed.

    Args:
        step: one round. It must wait for something, or the loop would use a whole processor.
        pause: seconds to wait after a failed round. None means `PAUSE`.
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
    """Run all awaitables at the same time, and wait until each has ended, even if some fail.

    Raises:
        ExceptionGroup: when some failed; it contains all failures.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
        raise ExceptionGroup(f"{len(failures)} of {len(outcomes)} have failed", failures)


async def shielded(task: asyncio.Task[T]) -> T:
    """Wait for `task` and shield it from cancellation. A cancellation is raised again after the task has finished."""
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
    """Work that continues when its caller is cancelled. Others can wait for its end."""

    def __init__(self, name: str) -> None:
        """Begin without work.

        Args:
            name: name of the tasks, for the log.
        """
        self._name = name
        #: the work that runs, or None
        self.task: asyncio.Task[Any] | None = None

    async def wait(self) -> None:
        """Wait until no work runs. A failure of the work is not raised here."""
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


class SharedWork(_Work, Generic[T]):
    """Work that concurrent callers share. It runs once for all of them."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the work that runs. If none runs, begin it."""
        task: asyncio.Task[T] = self.task or self._begin(work)
        return await asyncio.shield(task)


class ExclusiveWork(_Work):
    """Pieces of work that exclude each other: only one runs at a time."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait until no other work runs, run this work, and return its result."""
        while self.task is not None:
            await self.wait()
        return await asyncio.shield(self._begin(work))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no other work runs, and let other work wait until the end of the `with` block."""
        while self.task is not None:
            await self.wait()
        ended = asyncio.Event()
        block = self._begin(ended.wait)
        try:
            yield
        finally:
            ended.set()
            await asyncio.wait({block})


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    # A SessionError is an answer to the caller that awaits the task; any other error is a defect that must be logged.
    if error is not None and not isinstance(error, SessionError):
        log.error("background task failed", task=task.get_name(), exc_info=error)
