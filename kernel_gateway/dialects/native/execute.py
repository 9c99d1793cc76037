"""Execute over HTTP: one JSON answer, or the same outputs one by one as NDJSON or server-sent events."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson
from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.native.models import Execute, result_json
from kernel_gateway.handlers import JsonHandler
from sessions.errors import InvalidRequest
from sessions.models import ExecuteRequest, SessionKey
from sessions.session import Session

#: header of a client that has lost its stream: the id of the last event that it has seen
LAST_EVENT = "Last-Event-ID"

#: function that writes an event with its number
Render = Callable[[dict[str, Any], int], bytes]


def _ndjson(event: dict[str, Any], number: int) -> bytes:
    return orjson.dumps({"id": number} | event) + b"\n"


def _sse(event: dict[str, Any], number: int) -> bytes:
    """Source: WHATWG HTML, 9.2 Server-sent events."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, str(event["type"]).encode(), orjson.dumps(event))


#: media type that the client accepts → function that writes an event
STREAMS: dict[str, Render] = {
    "application/x-ndjson": _ndjson,
    "text/event-stream": _sse,
}


class ExecuteHandler(JsonHandler):
    """`/v1/sessions/{name}/execute`."""

    async def post(self, name: str) -> None:
        """Run a cell; the session is made on first use."""
        body = self.body(Execute)
        work = self._run(SessionKey(self.tenant, name), body.request(self.gateway.settings), self._last_seen())
        if body.on_disconnect == "interrupt":
            await self.run_until_client_leaves(work)
        else:
            await work

    def _last_seen(self) -> int | None:
        """Return the number of the last event that a returning client has seen, or None.

        Raises:
            InvalidRequest: when the header is no such number.
        """
        told = self.request.headers.get(LAST_EVENT)
        if told is not None and not re.fullmatch("[0-9]{1,9}", told):
            raise InvalidRequest(f"{LAST_EVENT} must be the id of an event", field="last_event_id")
        return None if told is None else int(told)

    async def _run(self, key: SessionKey, request: ExecuteRequest, seen: int | None) -> None:
        # A client that resumes a stream must not make a session or start a kernel.
        session = await self.gateway.registry.get_or_create(key) if seen is None else self.gateway.registry.get(key)
        accepted = self.request.headers.get("Accept", "")
        for media_type, render in STREAMS.items():
            if media_type in accepted:
                self.set_header("Content-Type", media_type)
                await self._stream(session, request, seen, render)
                return
        async with session.execute(request, seen) as execution:
            result = await execution.result()
        self.finish_json(result_json(result))

    async def _stream(self, session: Session, request: ExecuteRequest, seen: int | None, render: Render) -> None:
        self.http.stream.set_nodelay(True)
        async with session.execute(request, seen) as execution:
            try:
                async for event in execution:
                    self.write(render(event, execution.number))
                    await self.flush()
            except StreamClosedError:
                await execution.result()  # the client has left: its cell continues, or this task is cancelled here
                return
            result = await execution.result()
        last = {"type": "result", **result_json(result, outputs=execution.gap)}
        self.finish(render(last, execution.number + 1))
