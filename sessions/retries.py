"""Executions that a client may ask for again: a retry gets the first run's result, and nothing runs twice.

A run that has a key goes on when its client leaves: the client comes back for it with the same key, and picks up
its events after the last one that it has seen. Keys are a session's own; the oldest runs that have ended are
forgotten, and a session that is gone takes its keys along. The keys outlive a gateway that is killed, the results
do not: who asks again then is told that nobody knows, and nothing runs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import orjson

from sessions.errors import InvalidRequest, OutcomeUnknown
from sessions.execution import Execution
from sessions.ledger import Asked
from sessions.models import ExecuteRequest, ExecutionResult
from sessions.outputs import Event
from sessions.tasks import spawn

#: runs and bytes of outputs and events that are kept per session for who asks again
RUNS_MAX = 64
BYTES_MAX = 16 * 1024**2

Execute = Callable[[ExecuteRequest], AbstractAsyncContextManager[Execution]]


class Run:
    """A cell that runs to its end, whoever waits for it."""

    def __init__(self, request: ExecuteRequest, execute: Execute, events_max: int) -> None:
        """Begin.

        Args:
            request: what to run.
            execute: how.
            events_max: bytes of its last events that are kept when it has ended.
        """
        self.digest = _digest(request)
        #: its events as JSON, which is a fraction of their size; replaced, not changed, when it has ended
        self.events: list[bytes] = []
        #: how many events there were before the first of `events`
        self.dropped = 0
        #: the number of the last question among them
        self.question = 0
        self.over = False
        #: bytes of its outputs and of `events`
        self.size = 0
        self.execution: Execution | None = None
        self._events_max = events_max
        self._news = asyncio.Event()
        self.task = spawn(self._to_its_end(request, execute), "execution with a key")

    @property
    def told(self) -> int:
        """How many events there were."""
        return self.dropped + len(self.events)

    async def news(self) -> None:
        """Wait for the next event, or the end."""
        await self._news.wait()

    def asks(self, number: int) -> bool:
        """Whether the question with this number waits for its answer."""
        return number == self.question and self.execution is not None and self.execution.asks

    async def _to_its_end(self, request: ExecuteRequest, execute: Execute) -> ExecutionResult:
        try:
            async with execute(request) as self.execution:
                async for event in self.execution:
                    self.events.append(orjson.dumps(event))
                    if event["type"] == "input_request":
                        self.question = self.told
                    self._wake()
                result = await self.execution.result()
                self._keep_last(self.execution.size)
                return result
        finally:
            self.over = True
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _keep_last(self, outputs: int) -> None:
        """Of a cell that has said very much only the end; who reads the rest now has it in hand."""
        size = sum(map(len, self.events))
        first = 0
        while size > self._events_max:
            size -= len(self.events[first])
            first += 1
        if first:
            self.events = self.events[first:]
            self.dropped = first
        self.size = outputs + size


class Attempt:
    """What one client sees of a run: all of it, or what came after the events it has seen."""

    def __init__(self, run: Run, seen: int, *, first: bool) -> None:
        self._run = run
        self._first = first
        #: events that it has seen of it are no longer kept, so it is told none: the result has all outputs
        self.gap = seen < run.dropped
        #: the number of the event it was told last
        self.number = run.told if self.gap else seen
        self._events = run.events[:0] if self.gap else run.events
        self._next = max(seen - run.dropped, 0)

    async def result(self) -> ExecutionResult:
        """Wait for the end, and say how it was.

        Raises:
            SessionError: the cell was never sent.
        """
        result = await asyncio.shield(self._run.task)
        return result if self._first else replace(result, replayed=True)

    def answer(self, text: str) -> bool:
        """As `Execution.answer`."""
        return self._run.execution is not None and self._run.execution.answer(text)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The cell's events until its end, without questions that were answered before."""
        while True:
            while self._next < len(self._events):
                event = orjson.loads(self._events[self._next])
                self._next += 1
                self.number += 1
                if event["type"] != "input_request" or self._run.asks(self.number):
                    yield event
            if self._run.over:
                return
            await self._run.news()


class Retries:
    """One session's runs, by the key their clients gave."""

    def __init__(self, events_max: int, asked: Asked) -> None:
        """Begin with what an earlier gateway has begun.

        Args:
            events_max: bytes of events that are kept of a run.
            asked: where the keys are written down.
        """
        self._runs: dict[str, Run] = {}
        self._events_max = events_max
        self._asked = asked
        self._before = asked.all()

    def attempt(self, key: str, request: ExecuteRequest, execute: Execute, seen: int | None) -> Attempt:
        """Run a cell, or come back for one that has this key.

        Args:
            key: what the client calls this request.
            request: what to run.
            execute: how to run it, if it has not run yet.
            seen: the number of the last event that the client has seen of it, from 1; None: it asks for the first time,
                or again for all.

        Raises:
            InvalidRequest: the key was given to another request, or there is no such event.
            OutcomeUnknown: it was begun before the gateway was restarted.
            LedgerUnavailable: the key cannot be written down; nothing was run.
        """
        run = self._runs.get(key)
        digest = run.digest if run else self._before.get(key)
        if digest is not None and digest != _digest(request):
            raise InvalidRequest("this key was given to another request before", field="idempotency_key")
        if first := run is None:
            if digest is not None:
                raise OutcomeUnknown
            if seen is not None:
                raise InvalidRequest("no run of this key is known here any more", field="last_event_id")
            self._asked.add(key, _digest(request))
            run = self._runs[key] = Run(request, execute, self._events_max)
            run.task.add_done_callback(lambda _task: self._ended(key))
        elif (seen or 0) > run.told:
            raise InvalidRequest("nothing comes after this event", field="last_event_id")
        return Attempt(run, seen or 0, first=first)

    def close(self) -> None:
        """Keep no run any longer: the session was ended. Who waits for one gets its result all the same."""
        self._runs.clear()

    def _ended(self, key: str) -> None:
        run = self._runs.get(key)
        if run is None or run.task.cancelled():
            return  # the session has ended; or the gateway ends, and the next one knows that it was begun
        if run.task.exception() is not None:
            self._forget(key)  # nothing has run: the next attempt is the first
        ended = [(name, run) for name, run in self._runs.items() if run.task.done()]
        kept = sum(run.size for _, run in ended)
        for number, (oldest, run) in enumerate(ended[:-1]):
            if kept <= BYTES_MAX and len(ended) - number <= RUNS_MAX:
                return
            self._forget(oldest)
            kept -= run.size

    def _forget(self, key: str) -> None:
        del self._runs[key]
        self._asked.forget(key)


def _digest(request: ExecuteRequest) -> bytes:
    """What tells one request from another; the way it came by does not."""
    return hashlib.sha256(repr(replace(request, interactive=False)).encode()).digest()
