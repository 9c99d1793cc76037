"""Runs whose code calls LibreChat's tools: each of them answers several requests, one after the other.

A request begins a run. Its answer has the calls that wait, and a token; the next request brings this token and the
results of the calls, and the code goes on. The last answer is that of any run.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kernel_gateway.dialects.librechat.models import Continuation, ToolResult, WithTools
from kernel_gateway.dialects.librechat.runs import CodeRun
from sessions.cells.execution import Execution
from sessions.model.errors import ExecutionCancelled, ExecutionNotFound, InvalidRequest, QuotaExceeded
from sessions.model.tasks import set_within, spawn
from sessions.session.executions import Running

#: seconds without a further call after which the client is told of those that wait: code makes several at once
TOGETHER = 0.1
#: seconds for which a run waits for its client's results
RETURNS_WITHIN = 300.0
#: maximum runs of a tenant that are under way, or wait for their client
RUNS_MAX = 16
#: maximum characters of each text of a run that has ended while its client was away
KEPT = 64 * 1024

#: tenant and user
Owner = tuple[str, str]


class ToolRun:
    """One run."""

    def __init__(self, owner: Owner, run: CodeRun, body: WithTools, runs: ToolRuns) -> None:
        """Begin the run.

        Args:
            owner: who may continue it.
            run: runs the code.
            body: the request.
            runs: all runs; this one leaves them at its end.
        """
        self.owner = owner
        self.token = secrets.token_urlsafe(24)
        #: id of the request that waits for an answer, as the client calls it; empty for none
        self.request_id = ""
        self._names = body.names
        self._timeout = body.seconds
        self._runs = runs
        #: whether a request waits for an answer
        self._busy = False
        self._absence: asyncio.TimerHandle | None = None
        self._execution: Execution | None = None
        #: calls that the code has made, as the client is told of them. Those that were answered are removed later
        self._calls: dict[str, dict[str, Any]] = {}
        #: set when a call is made, and when the run begins or ends
        self._news = asyncio.Event()
        self._task = spawn(self._work(run), "run with tools")
        self._task.add_done_callback(lambda _task: self._news.set())

    async def _work(self, run: CodeRun) -> dict[str, Any]:
        told = await run.answer(self._follow)
        return told if self._busy else _shortened(told)

    async def _follow(self, running: Running) -> None:
        """Collect the calls of the cell until its end."""
        if not isinstance(running, Execution):
            raise TypeError("a cell with an idempotency key")
        self._execution = running
        self._news.set()
        async for event in running:
            if event["type"] == "tool_call":
                name = self._names[event["name"]]
                self._calls[event["call"]] = {"id": event["call"], "name": name, "input": event["arguments"]}
                self._news.set()

    def take(self, results: Iterable[ToolResult]) -> None:
        """Give the code the results of its calls.

        Raises:
            InvalidRequest: when an earlier request has no answer yet, or a result belongs to no call that waits.
        """
        if self._busy:
            raise InvalidRequest("an earlier request of this run has no answer yet", field="continuation_token")
        waiting, results = {call["id"] for call in self._waiting()}, list(results)
        # A run that has ended while its client was away needs no results any more.
        if not self._task.done() and {result.call_id for result in results} - waiting:
            raise InvalidRequest("no call with this id waits for its result", field="tool_results")
        for result in results:
            self._give(result)

    def _give(self, result: ToolResult) -> None:
        if self._execution is None or not self._execution.tools.waits(result.call_id):
            return
        if result.is_error:
            self._execution.tools.fail(result.call_id, "ToolError", result.error_message or "the tool has failed")
            return
        with suppress(InvalidRequest):  # too large: the call ends with an error, which the code sees
            self._execution.tools.answer(result.call_id, result.result)

    async def answer(self, request_id: str) -> dict[str, Any]:
        """Wait until calls need results, or for the end, and return the answer. Cancelling it ends the run.

        Raises:
            SessionError: when the code did not run.
        """
        self._busy, self.request_id, over = True, request_id, True
        if self._absence is not None:
            self._absence.cancel()
        try:
            if calls := await self._next_calls():
                over = False
                return {"status": "tool_call_required", "continuation_token": self.token, "tool_calls": calls}
            if self._task.cancelled():
                raise ExecutionCancelled
            return {"status": "completed", **await self._task}
        finally:
            self._busy, self.request_id = False, ""
            if over:
                self.end()
            else:
                self._absence = asyncio.get_running_loop().call_later(RETURNS_WITHIN, self.end)

    async def _next_calls(self) -> list[dict[str, Any]]:
        """Wait for calls, and return all that wait. At the run's end there are none.

        The client's time limit counts only while the code runs, and not while the client runs its tools.
        """
        while not self._task.done():
            waiting = self._waiting()
            self._news.clear()
            if not waiting and self._execution is None:
                await self._news.wait()
            elif not await set_within(self._news, TOGETHER if waiting else self._timeout):
                if waiting:
                    return waiting
                if self._execution is not None:
                    self._execution.expire(self._timeout)
                await asyncio.wait({self._task})
        return []

    def _waiting(self) -> list[dict[str, Any]]:
        if self._execution is None:
            return []
        tools = self._execution.tools
        self._calls = {name: call for name, call in self._calls.items() if tools.waits(name)}
        return list(self._calls.values())

    def end(self) -> None:
        """End the run, and forget it. A run that has ended already is only forgotten."""
        self._task.cancel()
        self._runs.forget(self)


class ToolRuns:
    """The runs of all tenants."""

    def __init__(self) -> None:
        self._all: dict[str, ToolRun] = {}

    def begin(self, owner: Owner, run: CodeRun, body: WithTools) -> ToolRun:
        """Begin a run.

        Raises:
            QuotaExceeded: when the tenant has too many.
        """
        if sum(owner[0] == each.owner[0] for each in self._all.values()) >= RUNS_MAX:
            raise QuotaExceeded(f"at most {RUNS_MAX} runs with tools at a time", max=RUNS_MAX)
        begun = ToolRun(owner, run, body, self)
        self._all[begun.token] = begun
        return begun

    def continued(self, owner: Owner, body: Continuation) -> ToolRun:
        """Return a run with the results of its calls.

        Raises:
            ExecutionNotFound: when it has ended, or waited too long, or belongs to somebody else.
            InvalidRequest: as in `ToolRun.take`.
        """
        run = self._all.get(body.continuation_token or "")
        if run is None or run.owner != owner:
            why = f"results of tools must come within {RETURNS_WITHIN:g} s, and not after a restart of the gateway"
            raise ExecutionNotFound(f"no run waits with this continuation_token: {why}")
        run.take(body.tool_results)
        return run

    def cancel(self, owner: Owner, request_id: str) -> None:
        """End the run whose request has this id, if it is under way."""
        for run in list(self._all.values()):
            if run.owner == owner and request_id and run.request_id == request_id:
                run.end()

    def forget(self, run: ToolRun) -> None:
        """Forget a run."""
        self._all.pop(run.token, None)


def _shortened(told: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a run that has ended while its client was away: it stays in memory until he returns."""
    cut = {name: told[name][:KEPT] for name in ("stdout", "stderr")}
    return told | cut | {"truncated": told["truncated"] or any(cut[name] != told[name] for name in cut)}
