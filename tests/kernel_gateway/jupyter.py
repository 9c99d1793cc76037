"""A client of a kernel's channels, which behaves like Jupyter's front ends."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from kernel_gateway.dialects.jupyter.framing import V1, decode, encode
from sessions.kernels.messages import Message
from tests.gateways import KEYS, Gateway

LEGACY = None


class Client:
    """A client of a kernel's channels, in either framing."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._way = connection.selected_subprotocol
        self._ended = False

    async def send(self, channel: str, msg_type: str, content: dict[str, Any], **parts: Any) -> str:
        """Send a message.

        Args:
            channel: channel of the message.
            msg_type: type of the message.
            content: content of the message.
            **parts: `parent` and `buffers` of the message, and more fields of its header.

        Returns:
            id of the message.
        """
        parent, buffers = parts.pop("parent", {}), parts.pop("buffers", ())
        header = {"msg_id": uuid.uuid4().hex, "msg_type": msg_type, "session": "", "username": "", "version": "5.3"}
        header |= parts
        raw = tuple(json.dumps(part).encode() for part in (header, parent, {}, content))
        frame, binary = encode(Message(channel, header, parent, {}, content, buffers, 0, raw), self._way)
        await self._connection.write_message(frame, binary=binary)
        return header["msg_id"]

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            frame = await self._connection.read_message()
        assert frame is not None, f"closed: {self._connection.close_code}"
        request = decode(frame, self._way)
        header, parent, metadata, content = (json.loads(part) for part in request.parts)
        return {
            "channel": request.channel,
            "header": header,
            "parent": parent,
            "content": content,
            "metadata": metadata,
        }

    async def of(self, msg_id: str) -> list[dict[str, Any]]:
        """Return the messages that follow a request, up to its reply and `idle`."""
        seen: list[dict[str, Any]] = []
        left = {"idle", "reply"}
        while left:
            message = await self.next()
            if message["parent"].get("msg_id") == msg_id:
                seen.append(message)
                left.discard("reply" if message["channel"] in {"shell", "control"} else "")
                left.discard(str(message["content"].get("execution_state")))
        return seen

    async def execute(self, code: str, **content: Any) -> list[dict[str, Any]]:
        asked = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        return await self.of(await self.send("shell", "execute_request", asked | content))

    async def text(self, code: str) -> str:
        seen = await self.execute(code)
        return "".join(message["content"].get("text", "") for message in seen)

    async def end(self) -> int | None:
        """Read until either side has closed the connection, and return the close code."""
        async with asyncio.timeout(15):
            while not self._ended:
                self._ended = await self._connection.read_message() is None
        return self._connection.close_code


@asynccontextmanager
async def connected(
    gateway: Gateway,
    kernel: str,
    way: str | None = V1,
    *,
    client: str = "",
    headers: dict[str, str] | None = None,
    key: str = KEYS["alice"],
) -> AsyncIterator[Client]:
    query = f"?session_id={client}&token={key}"
    address = gateway.url.replace("http", "ws", 1)
    request = HTTPRequest(f"{address}/api/kernels/{kernel}/channels{query}", headers=headers or {})
    connection = await websocket_connect(request, subprotocols=[way] if way else None, max_message_size=2**26)
    client_there = Client(connection)
    try:
        assert connection.selected_subprotocol == way
        yield client_there
    finally:
        connection.close()
        await client_there.end()


@contextmanager
def upgraded(gateway: Gateway, kernel: str) -> Iterator[socket.socket]:
    """Connect a client with a small receive buffer that does nothing on its own: it neither reads nor answers."""
    address = urlsplit(gateway.url)
    with socket.socket() as connection:
        connection.settimeout(60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address.hostname, address.port))
        connection.sendall(
            f"GET /api/kernels/{kernel}/channels?session_id=idle&token={KEYS['alice']} HTTP/1.1\r\n"
            f"Host: {address.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        yield connection
