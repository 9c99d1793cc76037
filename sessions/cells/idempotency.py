"""Executions with an idempotency key: a retry gets the first run's result, and no code runs twice.

A run with a key continues when its client leaves: the client sends the same key again, and gets the events after the
last one that it has seen. Or it asks for the run by its id. A client that does not want to wait needs no key of its
own: the session makes one. Keys belong to one session. The oldest ended runs are forgotten, and the end of a session
removes its keys. When a gateway is killed, the ledger keeps the keys and how their runs have ended, and the outputs are
lost: a retry then gets an error, and no code runs. Only a cell that waited for its turn is run by a retry.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import fields, replace

from sessions.cells.execution import Execution
from sessions.cells.outputs import Event, joined
from sessions.cells.packed import Output, PackedOutputs, pack, unpack
from sessions.cells.past_run import PastRun, Progress, RunEnd
from sessions.model.errors import (
    CellRunsOn,
    ExecutionCancelled,
    ExecutionNotFound,
    InvalidRequest,
    OutcomeUnknown,
    SessionError,
    ShuttingDown,
)
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionResult
from sessions.store.ledger import IdempotencyKeys
from sessions.tenants.kept_bytes import KeptBytes
from sessions.tools.calls import CLIENT_LEFT, ToolCalls

#: number of runs, and bytes of outputs and events, that are kept per session for retries
RUNS_MAX = 64
BYTES_MAX = 16 * 1024**2
#: keys of a session whose results are no longer kept
KEYS_MAX = 1000
#: fields of a request that say what its client can answer
_ANSWERED = {"interactive", "tools"}
#: why no code of a run has run that waited for its turn when the gateway was killed
NOT_SENT = "the gateway was ended before the execution's turn came, and its code did not run"
#: characters of a run's id
ID_LENGTH = 32
#: seconds after which a client that does not come back has left: nobody answers the cell's calls of tools any more
RETURNS_WITHIN = 60.0

Execute = Callable[[ExecuteRequest], AbstractAsyncContextManager[Execution]]


class Run:
    """A cell with an idempotency key. It runs to its end, with or without a client that waits."""

    #: whether its outputs are kept; see `PastRun`
    outputs_kept = True

    def __init__(self, key: str, request: ExecuteRequest, execute: Execute, events_max: int, asked_at: float) -> None:
        """Start the cell.

        Args:
            key: its idempotency key.
            request: cell to run.
            execute: runs it.
            events_max: bytes of the cell's last events that are kept after its end. During the run, up to twice as many
                are kept.
            asked_at: present time in seconds since 1970.
        """
        self.key = key
        self.id = _id_of(key)
        self.digest = _digest(request)
        self.asked_at = asked_at
        #: how it ended. None means that it has not ended.
        self.end: RunEnd | None = None
        #: whether its client has left without waiting for its end
        self.detached = False
        #: events as JSON, which takes less memory than dicts. A new list replaces this one when events are dropped.
        self.events: list[bytes] = []
        self._events_size = 0
        #: number of events before the first of `events`
        self.dropped = 0
        #: number of the event with the cell's last question to its client; 0: that was answered
        self.question = 0
        #: the events that wait for an answer of the client, by number: the id of a tool's call, and the event as JSON
        self._asking: dict[int, tuple[str | None, bytes]] = {}
        self.over = False
        #: bytes of the outputs and of `events`, and whether these bytes are counted for the session
        self.size = 0
        self.stored = False
        self.execution: Execution | None = None
        #: outputs of the result
        self.outputs = PackedOutputs()
        self._events_max = events_max
        self._news = asyncio.Event()
        #: clients that read the events now, and what happens if none comes back
        self._clients = 0
        self._absence: asyncio.TimerHandle | None = None
        self._began = False
        self._cancelled = False
        self.task = spawn(self._run(request, execute), "execution with a key")

    @property
    def progress(self) -> Progress:
        """How far it is."""
        if self.end is not None:
            return self.end.progress
        return Progress.QUEUED if self.execution is None else Progress.RUNNING

    @property
    def error(self) -> SessionError | None:
        """Why no code has run. None means that code has run, or may still run."""
        return None if self.end is None else self.end.error

    def outputs_so_far(self) -> Iterator[Output]:
        """Return the cell's outputs as they are now, in nbformat's form. Each is made only when it is needed."""
        if self.execution is None or self.end is not None:
            return map(joined, self.outputs)
        return map(joined, self.execution.outputs_so_far())

    def interrupt(self) -> None:
        """Interrupt the cell, and no other cell. If its turn has not come, it never runs."""
        if self._cancelled or self.task.done():
            return
        if self.execution is not None:
            spawn(self.execution.interrupt(), "interrupt")
            return
        self._cancelled = True
        if self._began:  # else the task finds out at its first step
            self.task.cancel()

    @property
    def event_count(self) -> int:
        """Number of events so far."""
        return self.dropped + len(self.events)

    async def news(self) -> None:
        """Wait for the next event or the end."""
        await self._news.wait()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Count a client, which reads the events and answers the calls of tools until the end of the block."""
        self._clients += 1
        self._await_client()
        try:
            yield
        finally:
            self._clients -= 1
            self._await_client()

    def _await_client(self) -> None:
        """End the calls of tools when no client comes back. Until then they wait: a connection may have broken off."""
        if self._absence is not None:
            self._absence.cancel()
        alone = not self._clients and not self.over
        self._absence = asyncio.get_running_loop().call_later(RETURNS_WITHIN, self._left) if alone else None

    def _left(self) -> None:
        if self.execution is None:  # its turn has not come: it has not called anything yet
            self._await_client()
        else:
            self.execution.tools.close(CLIENT_LEFT)

    def asks(self, number: int) -> bool:
        """Return whether the event with this number is a question that waits for its answer."""
        return number == self.question and self.execution is not None and self.execution.asks

    def answer(self, text: str) -> bool:
        """Answer the cell's `input()`; see `Execution.answer`.

        The question is over at once: the next one may be there before its event has a number.
        """
        answered = self.execution is not None and self.execution.answer(text)
        if answered:
            self.question = 0
        return answered

    def needs(self, event: Event, number: int) -> bool:
        """Return whether a client needs the event with this number. It needs no question that was answered before."""
        match event["type"]:
            case "input_request":
                return self.asks(number)
            case "tool_call":
                return self._waits(number, event["call"])
        return True

    def asking(self, seen: int) -> list[tuple[int, Event]]:
        """Return the events after one that wait for an answer, with their numbers, also those that were dropped."""
        self._forget_answered()
        return [(number, unpack(text)) for number, (_, text) in self._asking.items() if number > seen]

    def _ask(self, event: Event) -> None:
        if event["type"] == "input_request":
            self.question = self.event_count
        elif event["type"] != "tool_call":
            return
        self._forget_answered()
        self._asking[self.event_count] = event.get("call"), self.events[-1]

    def _forget_answered(self) -> None:
        asking = self._asking.items()
        self._asking = {number: (call, text) for number, (call, text) in asking if self._waits(number, call)}

    def _waits(self, number: int, call: str | None) -> bool:
        """Return whether an event waits for its answer: a call of a tool, or the question with this number."""
        if call is None:
            return self.asks(number)
        return self.execution is not None and self.execution.tools.waits(call)

    async def _run(self, request: ExecuteRequest, execute: Execute) -> ExecutionResult:
        self._began = True
        try:
            result = await self._run_unless_cancelled(request, execute)
            self.end = RunEnd(self.asked_at, result=result)
        except CellRunsOn:
            raise  # the end comes after this gateway's
        except SessionError as error:
            self.end = RunEnd(self.asked_at, error=error)
            raise
        finally:
            self.over = True
            self._await_client()
            self._wake()
        return result

    async def _run_unless_cancelled(self, request: ExecuteRequest, execute: Execute) -> ExecutionResult:
        if self._cancelled:
            raise ExecutionCancelled
        try:
            async with execute(request) as self.execution:
                async for event in self.execution:
                    self.events.append(pack(event))
                    self._events_size += len(self.events[-1])
                    self._ask(event)
                    if self._events_size > 2 * self._events_max:
                        self._keep_last()
                    self._wake()
                self._asking = {}
                result = await self.execution.result()
                self._keep_last()
                self.outputs = PackedOutputs(result.outputs)
                self.outputs.close()
                self.size = self.execution.size + self._events_size
                return replace(result, outputs=[])
        except asyncio.CancelledError:
            if self._cancelled:  # else the gateway is ending
                raise ExecutionCancelled from None
            raise

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
        #: events among those that it misses, with their numbers, which the cell needs an answer to
        self._asking: list[tuple[int, Event]] = []
        self._continue_with_kept()

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.id

    def read(self) -> AbstractContextManager[None]:
        """Read the events; see `Run.read`."""
        return self._run.read()

    @property
    def gap(self) -> bool:
        """Whether the client cannot get all events. The result still has all outputs."""
        return self._missed or (self._run.execution is not None and self._run.execution.gap)

    def _continue_with_kept(self) -> None:
        """Continue with the list of events that are kept now.

        If the next event was dropped, skip all these events, but for questions and calls that wait for an answer.
        """
        if self.number < self._run.dropped:
            self._missed = True
            self._asking += self._run.asking(self.number)
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
        return self._run.answer(text)

    @property
    def tools(self) -> ToolCalls | None:
        """The cell's calls of tools. None means that its turn has not come."""
        return None if self._run.execution is None else self._run.execution.tools

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the cell's events until its end, without questions that were answered before."""
        while True:
            while self._asking:
                kept, (self.number, event) = self.number, self._asking.pop(0)
                if self._run.needs(event, self.number):
                    yield event
                self.number = kept
            while self._next < len(self._events):
                event = unpack(self._events[self._next])
                self._next += 1
                self.number += 1
                if self._run.needs(event, self.number):
                    yield event
            if self._events is not self._run.events:
                self._continue_with_kept()
                continue
            if self._run.over:
                return
            await self._run.news()


class IdempotencyCache:
    """The runs of one session by idempotency key."""

    def __init__(
        self, events_max: int, asked: IdempotencyKeys, kept: KeptBytes, tenant: str, clock: Callable[[], float]
    ) -> None:
        """Begin with the keys of an earlier gateway.

        Args:
            events_max: bytes of events that are kept of a run.
            asked: the session's keys in the ledger.
            kept: counts the bytes of all sessions.
            tenant: tenant of the session.
            clock: function that returns seconds since 1970.
        """
        #: oldest first
        self._runs: dict[str, Run | PastRun] = {
            key: PastRun(_id_of(key), of.digest, None if of.end is None else RunEnd.decode(of.end))
            for key, of in asked.all().items()
        }
        self._events_max = events_max
        self._stored_keys = asked
        self._clock = clock
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
            OutcomeUnknown: when the outputs of the run are not known any more.
            ExecutionCancelled: when the run was cancelled before its turn.
            LedgerUnavailable: when the key cannot be recorded; no code was run.
        """
        run, first = self._run_of(key, request), False
        if run is None:
            if seen is not None:
                raise InvalidRequest("no run with this key is known any more", field="last_event_id")
            run, first = self._begin(key, request, execute), True
        elif (seen or 0) > run.event_count:
            raise InvalidRequest("this run has no event with this number yet", field="last_event_id")
        return Attempt(run, seen or 0, first=first)

    async def submit(self, key: str, request: ExecuteRequest, execute: Execute) -> Run:
        """Run a cell that no client waits for, or return the run that has this key.

        Raises:
            SessionError: as in `attempt`, or when the cell is refused at once.
        """
        run = self._run_of(key, request) or self._begin(key, request, execute)
        await asyncio.sleep(0)  # a refusal that needs no wait comes now, and the client gets it
        if not run.task.done():
            run.detached = True
        elif run.error is not None:
            raise run.error
        return run

    def _run_of(self, key: str, request: ExecuteRequest) -> Run | None:
        """Return the run that has this key. None means that the cell may run."""
        run = self._runs.get(key)
        if run is not None and run.end is not None and run.end.frees_key:
            self._forget(key)
            return None
        if run is not None and run.digest != _digest(request):
            raise InvalidRequest("this key was given to another request before", field="idempotency_key")
        if isinstance(run, PastRun):
            raise run.refusal()
        return run

    def _begin(self, key: str, request: ExecuteRequest, execute: Execute) -> Run:
        asked_at = self._clock()
        self._stored_keys.add(key, _digest(request), RunEnd(asked_at, error=ShuttingDown(NOT_SENT)).encode())
        run = self._runs[key] = Run(key, request, execute, self._events_max, asked_at)
        run.task.add_done_callback(lambda _task: self._ended(key, run))
        return run

    def sends(self, key: str) -> None:
        """Record that the cell of a run is about to be sent. If the gateway is killed later, its outcome is unknown.

        Raises:
            LedgerUnavailable: when that cannot be recorded; the cell must not be sent.
        """
        self._stored_keys.sends(key)

    # -- runs by id -----------------------------------------------------------------------------------------

    def newest_first(self) -> Iterable[Run | PastRun]:
        """Return all runs that are known, the last one first."""
        return reversed(self._runs.values())

    def find(self, run_id: str) -> Run | PastRun:
        """Return the run with an id.

        Raises:
            ExecutionNotFound: when there is no such run, or it is no longer known.
        """
        for run in self._runs.values():
            if run.id == run_id:
                return run
        raise ExecutionNotFound(execution=run_id)

    def interrupt(self, run_id: str) -> None:
        """Interrupt the cell of one run; see `Run.interrupt`. A run that has ended stays as it is.

        Raises:
            ExecutionNotFound: as in `find`.
            OutcomeUnknown: when an earlier gateway began the run, and its cell may still be running.
        """
        run = self.find(run_id)
        if isinstance(run, Run):
            run.interrupt()
        elif run.progress is Progress.UNKNOWN:
            raise OutcomeUnknown

    def answer(self, run_id: str, question: int, text: str) -> bool:
        """Answer the `input()` of one run.

        Args:
            run_id: id of the run.
            question: number of the event that asks.
            text: the answer.

        Returns:
            True if the run waited for the answer to this question.

        Raises:
            ExecutionNotFound: as in `find`.
        """
        run = self.find(run_id)
        return isinstance(run, Run) and run.asks(question) and run.answer(text)

    def tools(self, run_id: str) -> ToolCalls | None:
        """Return the calls of tools of one run. None means that it makes none: it waits for its turn, or has ended.

        Raises:
            ExecutionNotFound: as in `find`.
        """
        run = self.find(run_id)
        return run.execution.tools if isinstance(run, Run) and run.execution is not None else None

    # -- what is kept ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Forget all runs, because the session was ended. Clients that wait for a run still get its result."""
        self._runs.clear()
        self._share.close()

    def _ended(self, key: str, run: Run) -> None:
        if self._runs.get(key) is not run:
            return  # the session has ended, or another run has the key, because no code has run here
        if run.task.cancelled() or isinstance(run.task.exception(), CellRunsOn):
            return  # the gateway is ending, and the ledger keeps the key for the next gateway
        if run.end is None or (run.end.frees_key and not run.detached):
            self._forget(key)  # no code has run, and the client knows why
            return
        self._stored_keys.end(key, run.end.encode())
        if run.end.result is None:
            self._make_past(key, run)
            return
        run.stored = True
        self._share.grow(run.size)
        ended = [name for name, run in self._runs.items() if isinstance(run, Run) and run.task.done()]
        for number, oldest in enumerate(ended[:-1]):
            if self._share.size <= BYTES_MAX and len(ended) - number <= RUNS_MAX:
                return
            self._forget(oldest)

    def _drop_oldest(self) -> bool:
        """Drop the outputs of the oldest run that has ended, and keep its key. Return whether there was such a run."""
        for key, run in self._runs.items():
            if isinstance(run, Run) and run.stored:
                self._make_past(key, run)
                return True
        return False

    def _make_past(self, key: str, run: Run) -> None:
        """Drop the outputs of a run that has ended, and keep its key and its end."""
        self._uncount(run)
        self._runs[key] = PastRun(run.id, run.digest, run.end)
        past = [name for name, each in self._runs.items() if isinstance(each, PastRun)]
        if len(past) > KEYS_MAX:
            self._forget(past[0])

    def _forget(self, key: str) -> None:
        self._uncount(self._runs.pop(key))
        self._stored_keys.forget(key)

    def _uncount(self, run: Run | PastRun) -> None:
        if isinstance(run, Run) and run.stored:
            run.stored = False
            self._share.grow(-run.size)


def _id_of(key: str) -> str:
    """Return the id of the run that has this idempotency key: a later gateway, which has the key, finds it again."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:ID_LENGTH]


def _digest(request: ExecuteRequest) -> bytes:
    """Return a digest that differs for different requests. It ignores what the client can answer: `input()`, and tools.

    Fields that have their default are left out. So a later version, whose requests have further fields, makes the same
    digest, and knows a retry of a request that this version got.
    """
    usual = type(request)("")
    values = {each.name: getattr(request, each.name) for each in fields(request) if each.name not in _ANSWERED}
    given = {name: value for name, value in values.items() if value != getattr(usual, name)}
    return hashlib.sha256(repr(sorted(given.items())).encode()).digest()
