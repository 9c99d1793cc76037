"""Executions that a client may ask for again: a retry gets the first run's result, and nothing runs twice.

A run that has a key goes on when its client leaves: the client comes back for it with the same key. Keys are a
session's own; the oldest runs that have ended are forgotten, and a session that is gone takes its keys along.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from sessions.errors import InvalidRequest
from sessions.execution import Execution
from sessions.models import ExecuteRequest, ExecutionResult
from sessions.outputs import Event
from sessions.tasks import spawn

#: runs and bytes of outputs that are kept per session for who asks again
RUNS_MAX = 64
BYTES_MAX = 16 * 1024**2

Execute = Callable[[ExecuteRequest], AbstractAsyncContextManager[Execution]]


class Run:
    """A cell that runs to its end, whoever waits for it."""

    def __init__(self, request: ExecuteRequest, execute: Execute) -> None:
        self.digest = _digest(request)
        #: bytes of its outputs
        self.size = 0
        #: set when its turn came, or when it turned out that it never will
        self.begun = asyncio.Event()
        self.execution: Execution | None = None
        self.task = spawn(self._to_its_end(request, execute), "execution with a key")

    async def _to_its_end(self, request: ExecuteRequest, execute: Execute) -> ExecutionResult:
        try:
            async with execute(request) as self.execution:
                self.begun.set()
                result = await self.execution.result()
                self.size = self.execution.size
                return result
        finally:
            self.begun.set()


class Attempt:
    """What one client sees of a run: the first as it happens, the others when it has ended."""

    def __init__(self, run: Run, *, first: bool) -> None:
        self._run = run
        self._first = first

    async def result(self) -> ExecutionResult:
        """Wait for the end, and say how it was.

        Raises:
            SessionError: the cell was never sent.
        """
        result = await asyncio.shield(self._run.task)
        return result if self._first else replace(result, replayed=True)

    def answer(self, text: str) -> bool:
        """As `Execution.answer`."""
        return self._first and self._run.execution is not None and self._run.execution.answer(text)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The cell's events until its end."""
        if self._first:
            await self._run.begun.wait()
            if self._run.execution is not None:
                async for event in self._run.execution:
                    yield event
            return
        result = await self.result()
        yield {"type": "started", "execution_count": result.execution_count}
        for output in result.outputs:
            yield {"type": "output", "output": output}


class Retries:
    """One session's runs, by the key their clients gave."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def attempt(self, key: str, request: ExecuteRequest, execute: Execute) -> Attempt:
        """Run a cell, or come back for one that has this key.

        Args:
            key: what the client calls this request.
            request: what to run.
            execute: how to run it, if it has not run yet.

        Raises:
            InvalidRequest: the key was given to another request.
        """
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Run(request, execute)
            run.task.add_done_callback(lambda _task: self._ended(key))
            return Attempt(run, first=True)
        if run.digest != _digest(request):
            raise InvalidRequest("this key was given to another request before", field="idempotency_key")
        return Attempt(run, first=False)

    def _ended(self, key: str) -> None:
        run = self._runs[key]
        if run.task.cancelled() or run.task.exception() is not None:
            del self._runs[key]  # nothing has run: the next attempt is the first
        ended = [(name, run) for name, run in self._runs.items() if run.task.done()]
        kept = sum(run.size for _, run in ended)
        for number, (oldest, run) in enumerate(ended[:-1]):
            if kept <= BYTES_MAX and len(ended) - number <= RUNS_MAX:
                return
            del self._runs[oldest]
            kept -= run.size


def _digest(request: ExecuteRequest) -> bytes:
    """What tells one request from another; the way it came by does not."""
    return hashlib.sha256(repr(replace(request, interactive=False)).encode()).digest()
