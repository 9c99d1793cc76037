"""Executions with an idempotency key: a retry gets the first run's result, and no code runs twice.

A run with a key continues when its client leaves: the client sends the same key again, and gets the events after the
last one that it has seen. Keys belong to one session. The oldest ended runs are forgotten, and the end of a session
removes its keys. When a gateway is killed, the ledger keeps the keys, and the results are lost: a retry then gets the
error that the outcome is unknown, and no code runs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, replace

from sessions.cells.execution import Execution
from sessions.cells.outputs import Event
from sessions.cells.packed import PackedOutputs, pack, unpack
from sessions.model.errors import InvalidRequest, OutcomeUnknown
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionResult
from sessions.store.ledger import IdempotencyKeys
from sessions.tenants.kept_bytes import KeptBytes

#: number of runs, and bytes of outputs and events, that are kept per session for retries
RUNS_MAX = 64
BYTES_MAX = 16 * 1024**2
#: keys of a session whose results are no longer kept
KEYS_MAX = 1000

Execute = Callable[[ExecuteRequest], AbstractAsyncContextManager[Execution]]


class Run:
    """A cell with an idempotency key. It runs to its end, with or without a client that waits."""

    def __init__(self, request: ExecuteRequest, execute: Execute, events_max: int) -> None:
        """Start the cell.

        Args:
            request: cell to run.
            execute: runs it.
            events_max: bytes of the cell's last events that are kept after its end. During the run, up to twice as many
                are kept.
        """
        self.digest = _digest(request)
        #: events as JSON, which takes less memory than dicts. A new list replaces this one when events are dropped.
        self.events: list[bytes] = []
        self._events_size = 0
        #: number of events before the first of `events`
        self.dropped = 0
        #: number of the event with the cell's last question to its client
        self.question = 0
        self.over = False
        #: bytes of the outputs and of `events`, and whether these bytes are counted for the session
        self.size = 0
        self.stored = False
        self.execution: Execution | None = None
        #: outputs of the result
        self.outputs = PackedOutputs()
        self._events_max = events_max
        self._news = asyncio.Event()
        self.task = spawn(self._run(request, execute), "execution with a key")

    @property
    def event_count(self) -> int:
        """Number of events so far."""
        return self.dropped + len(self.events)

    async def news(self) -> None:
        """Wait for the next event or the end."""
        await self._news.wait()

    def asks(self, number: int) -> bool:
        """Return whether the event with this number is a question that waits for its answer."""
        return number == self.question and self.execution is not None and self.execution.asks

    async def _run(self, request: ExecuteRequest, execute: Execute) -> ExecutionResult:
        try:
            async with execute(request) as self.execution:
                async for event in self.execution:
                    self.events.append(pack(event))
                    self._events_size += len(self.events[-1])
                    if self._events_size > 2 * self._events_max:
                        self._keep_last()
                    if event["type"] == "input_request":
                        self.question = self.event_count
                    self._wake()
                result = await self.execution.result()
                self._keep_last()
                self.outputs = PackedOutputs(result.outputs)
                self.outputs.close()
                self.size = self.execution.size + self._events_size
                return replace(result, outputs=[])
        finally:
            self.over = True
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _keep_last(self) -> None:
        """Drop the first events beyond the limit. Attempts that are reading the old list keep that list."""
        first = 0
        while self._events_size > self._events_max:
            self._events_size -= len(self.events[first])
            first += 1
        if first:
            self.events = self.events[first:]
            self.dropped += first


class Attempt:
    """One client's view of a run: all events, or the events after the last one that the client has seen."""

    def __init__(self, run: Run, seen: int, *, first: bool) -> None:
        self._run = run
        self._first = first
        #: whether events that the client has not seen are no longer kept
        self._missed = False
        #: number of the last event that the client got
        self.number = seen
        self._events: list[bytes] = []
        self._next = 0
        self._continue_with_kept()

    @property
    def gap(self) -> bool:
        """Whether the client cannot get all events. The result still has all outputs."""
        return self._missed or (self._run.execution is not None and self._run.execution.gap)

    def _continue_with_kept(self) -> None:
        """Continue with the list of events that are kept now. If the next event was dropped, skip all these events."""
        if self.number < self._run.dropped:
            self._missed = True
            self.number = self._run.event_count
        self._events = self._run.events
        self._next = self.number - self._run.dropped

    async def result(self) -> ExecutionResult:
        """Wait for the end, and return the result.

        Raises:
            SessionError: when the cell was never sent.
        """
        result = await asyncio.shield(self._run.task)
        return replace(result, outputs=list(self._run.outputs), replayed=not self._first)

    def answer(self, text: str) -> bool:
        """Answer the cell's `input()`; see `Execution.answer`."""
        return self._run.execution is not None and self._run.execution.answer(text)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the cell's events until its end, without questions that were answered before."""
        while True:
            while self._next < len(self._events):
                event = unpack(self._events[self._next])
                self._next += 1
                self.number += 1
                if event["type"] != "input_request" or self._run.asks(self.number):
                    yield event
            if self._events is not self._run.events:
                self._continue_with_kept()
                continue
            if self._run.over:
                return
            await self._run.news()


class IdempotencyCache:
    """The runs of one session by idempotency key."""

    def __init__(self, events_max: int, asked: IdempotencyKeys, kept: KeptBytes, tenant: str) -> None:
        """Begin with the keys of an earlier gateway.

        Args:
            events_max: bytes of events that are kept of a run.
            asked: the session's keys in the ledger.
            kept: counts the bytes of all sessions.
            tenant: tenant of the session.
        """
        self._runs: dict[str, Run] = {}
        self._events_max = events_max
        self._stored_keys = asked
        #: digests of runs whose results are not kept: a retry gets an error, and no code runs
        self._before = asked.all()
        self._share = kept.share(tenant, self._drop_oldest)

    def attempt(self, key: str, request: ExecuteRequest, execute: Execute, seen: int | None) -> Attempt:
        """Run a cell, or return to the run that has this key.

        Args:
            key: idempotency key of the request.
            request: cell to run.
            execute: runs the cell, if no run has this key yet.
            seen: number of the last event that the client has seen, from 1. None means the first request, or a request
                for all events.

        Raises:
            InvalidRequest: when the key belongs to another request, or the run has no event with this number.
            OutcomeUnknown: when the run began before the gateway was restarted.
            LedgerUnavailable: when the key cannot be recorded; no code was run.
        """
        run = self._runs.get(key)
        digest = run.digest if run else self._before.get(key)
        if digest is not None and digest != _digest(request):
            raise InvalidRequest("this key was given to another request before", field="idempotency_key")
        if first := run is None:
            if digest is not None:
                raise OutcomeUnknown
            if seen is not None:
                raise InvalidRequest("no run with this key is known any more", field="last_event_id")
            self._stored_keys.add(key, _digest(request))
            run = self._runs[key] = Run(request, execute, self._events_max)
            run.task.add_done_callback(lambda _task: self._ended(key))
        elif (seen or 0) > run.event_count:
            raise InvalidRequest("this run has no event with this number yet", field="last_event_id")
        return Attempt(run, seen or 0, first=first)

    def close(self) -> None:
        """Forget all runs, because the session was ended. Clients that wait for a run still get its result."""
        self._runs.clear()
        self._share.close()

    def _ended(self, key: str) -> None:
        run = self._runs.get(key)
        if run is None or run.task.cancelled():
            return  # the session has ended; or the gateway is ending, and the ledger keeps the key for the next gateway
        if run.task.exception() is not None:
            self._forget(key)  # no code has run: the next request with this key runs the cell
            return
        run.stored = True
        self._share.grow(run.size)
        ended = [name for name, run in self._runs.items() if run.task.done()]
        for number, oldest in enumerate(ended[:-1]):
            if self._share.size <= BYTES_MAX and len(ended) - number <= RUNS_MAX:
                return
            self._forget(oldest)

    def _drop_oldest(self) -> bool:
        """Drop the result of the oldest run that has ended, and keep its key. Return whether there was such a run."""
        for key, run in self._runs.items():
            if run.stored:
                self._before[key] = run.digest
                self._remove(key)
                if len(self._before) > KEYS_MAX:
                    oldest = next(iter(self._before))
                    del self._before[oldest]
                    self._stored_keys.forget(oldest)
                return True
        return False

    def _forget(self, key: str) -> None:
        self._remove(key)
        self._stored_keys.forget(key)

    def _remove(self, key: str) -> None:
        run = self._runs.pop(key)
        if run.stored:
            self._share.grow(-run.size)


def _digest(request: ExecuteRequest) -> bytes:
    """Return a digest that differs for different requests. It ignores whether the client can answer `input()`.

    Fields that have their default are left out. So a later version, whose requests have further fields, makes the same
    digest, and knows a retry of a request that this version got.
    """
    usual = type(request)("")
    values = {each.name: getattr(request, each.name) for each in fields(request) if each.name != "interactive"}
    given = {name: value for name, value in values.items() if value != getattr(usual, name)}
    return hashlib.sha256(repr(sorted(given.items())).encode()).digest()
