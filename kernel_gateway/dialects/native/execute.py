"""Execute over HTTP: one JSON answer, or the same outputs one by one as NDJSON or server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.native.models import Execute, result_json
from kernel_gateway.handlers import JsonHandler
from sessions.models import ExecuteRequest, SessionKey
from sessions.session import Session


def _ndjson(event: dict[str, Any]) -> bytes:
    return orjson.dumps(event) + b"\n"


def _sse(event: dict[str, Any]) -> bytes:
    """Source: WHATWG HTML, 9.2 Server-sent events."""
    return b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), orjson.dumps(event))


#: media type that the client accepts → how an event is written
STREAMS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "application/x-ndjson": _ndjson,
    "text/event-stream": _sse,
}


class ExecuteHandler(JsonHandler):
    """`/v1/sessions/{name}/execute`."""

    async def post(self, name: str) -> None:
        """Run a cell; the session is made on first use."""
        request = self.body(Execute).request(self.gateway.settings)
        # When the client leaves, its cell is interrupted, and the variables are kept.
        await self.while_client_stays(self._run(SessionKey(self.tenant, name), request))

    async def _run(self, key: SessionKey, request: ExecuteRequest) -> None:
        session = await self.gateway.registry.obtain(key)
        accepted = self.request.headers.get("Accept", "")
        for media_type, render in STREAMS.items():
            if media_type in accepted:
                self.set_header("Content-Type", media_type)
                await self._stream(session, request, render)
                return
        async with session.execute(request) as execution:
            result = await execution.result()
        self.finish_json(result_json(result))

    async def _stream(
        self, session: Session, request: ExecuteRequest, render: Callable[[dict[str, Any]], bytes]
    ) -> None:
        self.http.stream.set_nodelay(True)
        try:
            async with session.execute(request) as execution:
                async for event in execution:
                    self.write(render(event))
                    await self.flush()
                result = await execution.result()
            self.finish(render({"type": "result", **result_json(result, outputs=False)}))
        except StreamClosedError:
            return  # the client has left while we wrote; the cell was interrupted on the way out
