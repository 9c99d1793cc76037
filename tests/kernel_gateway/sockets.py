"""A client of the WebSocket stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.gateways import KEYS, Gateway, text_of

Event = dict[str, Any]


class Socket:
    """One client of a stream."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._ended = False

    async def send(self, **frame: Any) -> None:
        await self.send_raw(json.dumps(frame))

    async def send_raw(self, frame: str | bytes) -> None:
        await self._connection.write_message(frame, binary=isinstance(frame, bytes))

    @property
    def reason(self) -> str | None:
        """The reason with which the gateway has closed the connection."""
        return self._connection.close_reason

    def write(self, raw: bytes) -> asyncio.Future[None]:
        """Write bytes as they are, for frames that no client would send; the future is done when all are sent."""
        protocol = self._connection.protocol
        assert protocol is not None
        assert protocol.stream is not None
        return protocol.stream.write(raw)

    async def event(self) -> Event:
        """Return the next event."""
        message = await self._read()
        assert message is not None, f"closed: {self._connection.close_code}"
        event: Event = json.loads(message)
        return event

    async def _read(self) -> str | bytes | None:
        async with asyncio.timeout(60):
            message = await self._connection.read_message()
        self._ended = message is None
        return message

    async def until(self, kind: str) -> list[Event]:
        """Return the events up to the first of a kind."""
        events = [await self.event()]
        while events[-1]["type"] != kind:
            events.append(await self.event())
        return events

    async def run(self, code: str, **fields: Any) -> list[Event]:
        """Run a cell and return its events."""
        await self.send(code=code, **fields)
        return await self.until("result")

    async def text(self, code: str) -> str:
        """Run a cell and return the text of its outputs."""
        return text_of({"outputs": [event["output"] for event in await self.run(code) if event["type"] == "output"]})

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        await self.end()

    async def end(self) -> int | None:
        """Read until the connection ends, whichever side ends it; return the close code."""
        while not self._ended:
            await self._read()
        return self._connection.close_code


def request(gateway: Gateway, session: str, headers: dict[str, str]) -> HTTPRequest:
    """Return the upgrade request."""
    return HTTPRequest(f"{gateway.url.replace('http', 'ws', 1)}/v1/sessions/{session}/stream", headers=headers)


@asynccontextmanager
async def connected(
    gateway: Gateway, session: str, tenant: str = "alice", *, key: str | None = None
) -> AsyncIterator[Socket]:
    """Connect a client; it leaves at the end."""
    headers = {"Authorization": f"Bearer {key or KEYS[tenant]}"}
    connection = await websocket_connect(request(gateway, session, headers))
    socket = Socket(connection)
    try:
        yield socket
    finally:
        await socket.close()
