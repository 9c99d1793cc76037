"""Runs a cell for an HTTP request. The answer is one JSON object, or a stream of events (NDJSON or server-sent)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.native.executions import ExecutionSummary
from kernel_gateway.dialects.native.models import Execute, check_language, result_json
from kernel_gateway.dialects.native.stream_formats import PAUSE, SSE_COMMENT, STREAMS, Render, sse, wanted_stream
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.keepalive import with_keepalive
from kernel_gateway.http.plain_text import PlainText
from sessions.cells.idempotency import Attempt
from sessions.model.errors import CellRunsOn, InvalidRequest
from sessions.model.values import ExecuteRequest, ExecutionResult, SessionKey, SessionSpec
from sessions.session.executions import Running
from sessions.session.session import Session

#: request header of a client that has lost its stream: the id of the last event that the client has received
LAST_EVENT = "Last-Event-ID"

#: header of every answer: the id of the session
SESSION_ID = "X-Session-Id"
#: header of an answer: the id of an execution that can be asked for later
EXECUTION_ID = "X-Execution-Id"


class ExecuteHandler(JsonHandler):
    """`/v1/sessions/{name}/execute`."""

    #: converts the outputs, if the client wants them as plain text
    _plain: PlainText | None = None
    #: language that the session must have; None means any
    _language: str | None = None

    async def post(self, name: str) -> None:
        """Run a cell; the session is made on first use."""
        body = self.body(Execute)
        self._plain, self._language = PlainText() if body.plain else None, body.language
        key, request, seen = SessionKey(self.tenant, name), body.request(self.tenant_settings), self._last_seen()
        if body.tools and not self._sees_calls(body):
            raise InvalidRequest("a cell with `tools` needs an idempotency_key and a stream", field="tools")
        if body.interactive and body.wait and not self._sees_calls(body):
            told = "a cell with `interactive` needs an idempotency_key and a stream, or `wait` false"
            raise InvalidRequest(told, field="interactive")
        if body.debug is not None and (not body.wait or self._media_type() is None):
            raise InvalidRequest("a cell with `debug` needs a stream, or a WebSocket", field="debug")
        if not body.wait:
            await self._submit(key, request, seen)
            return
        work = self._run(key, request, seen)
        if body.on_disconnect == "interrupt" or body.tools or body.debug:  # a cell with tools has a key: it continues
            await self.run_until_client_leaves(work)
        else:
            await work

    def _sees_calls(self, body: Execute) -> bool:
        """Return whether the client sees in its stream what the cell asks, and can name the execution in its answer."""
        return body.idempotency_key is not None and body.wait and self._media_type() is not None

    def _media_type(self) -> str | None:
        """Return the type of the stream that the client wants, or None if it wants one JSON object."""
        return wanted_stream(self.request.headers.get("Accept", ""))

    def _last_seen(self) -> int | None:
        """Return the number of the last event that the client has received, or None for a new run.

        Raises:
            InvalidRequest: when the header is not a number.
        """
        told = self.request.headers.get(LAST_EVENT)
        if told is not None and not re.fullmatch("[0-9]{1,9}", told):
            raise InvalidRequest(f"{LAST_EVENT} must be the id of an event", field="last_event_id")
        return None if told is None else int(told)

    async def _submit(self, key: SessionKey, request: ExecuteRequest, seen: int | None) -> None:
        """Run a cell without a client that waits. The answer describes the execution."""
        if seen is not None:
            raise InvalidRequest("only a client that waits can resume a stream", field="wait")
        session = await self._session(key, request, seen)
        run = await session.submit(request)
        self.set_status(HTTPStatus.ACCEPTED)
        self.set_header(EXECUTION_ID, run.id)
        self.set_header("Location", f"/v1/sessions/{key.name}/executions/{run.id}")
        self.finish_json(ExecutionSummary.of(session, run).as_dict())

    async def _session(self, key: SessionKey, request: ExecuteRequest, seen: int | None) -> Session:
        if seen is None and request.if_session is None and request.if_incarnation is None:
            session = await self.gateway.registry.get_or_create(key, self._spec())
        else:  # a client that resumes a stream or needs variables does not want a new session
            session = self.gateway.registry.get(key)
        check_language(self.gateway.registry, session, self._language)
        self.set_header(SESSION_ID, session.id)
        return session

    def _spec(self) -> SessionSpec:
        """Return the settings of a session that is made on first use."""
        defaults = self.gateway.registry.defaults_of(self.tenant)
        return defaults if self._language is None else replace(defaults, language=self._language)

    async def _run(self, key: SessionKey, request: ExecuteRequest, seen: int | None) -> None:
        session = await self._session(key, request, seen)
        media_type = self._media_type()
        if media_type is not None:
            self.set_header("Content-Type", media_type)
            try:
                await self._stream(session, request, seen, STREAMS[media_type])
            except asyncio.CancelledError:
                if request.debug is not None:
                    session.debugger.leave()
                raise
            return
        async with session.execute(request, seen) as execution:
            self._tell_id(execution)
            result = await execution.result()
            self.finish_json(await self._result(session, result))

    def _tell_id(self, execution: Running) -> None:
        if isinstance(execution, Attempt):  # only an execution with an idempotency key can be asked for later
            self.set_header(EXECUTION_ID, execution.run_id)

    async def _result(self, session: Session, result: ExecutionResult, *, outputs: bool = True) -> dict[str, Any]:
        if self._plain is None or not outputs:
            return result_json(session, result, outputs=outputs, plain=self._plain)
        # There may be many outputs. Those that were streamed before are converted anew.
        return await asyncio.to_thread(result_json, session, result, plain=PlainText())

    async def _stream(self, session: Session, request: ExecuteRequest, seen: int | None, render: Render) -> None:
        self.http.stream.set_nodelay(True)
        async with session.execute(request, seen) as execution:
            self._tell_id(execution)
            try:
                async for event in with_keepalive(execution, PAUSE) if render is sse else execution:
                    if event is None:
                        self.write(SSE_COMMENT)
                    else:
                        shown = await self._plain.event_in_time(event) if self._plain else event
                        self.write(render(shown, execution.number))
                    await self.flush()
            except StreamClosedError:
                await execution.result()  # the client has left; the cell continues, unless this task is cancelled here
                return
            try:
                result = await execution.result()
                last = {"type": "result", **await self._result(session, result, outputs=execution.gap)}
            except CellRunsOn as error:  # the status has been sent: a broken stream would not say what happened
                last = {"type": "error", "error": error.as_dict()}
            self.finish(render(last, execution.number + 1))
