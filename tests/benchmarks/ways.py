"""The compared ways to run a cell: a raw client, and every interface of a gateway.

Each client runs a cell to its end and counts the bytes that it shows, so that lost output is not taken for speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import orjson
import requests
from jupyter_client.asynchronous.client import AsyncKernelClient
from tornado.httpclient import HTTPRequest
from tornado.simple_httpclient import HTTPTimeoutError
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.benchmarks.figures import say
from tests.gateways import KEYS, Gateway

AUTHORIZATION = {"Authorization": f"Bearer {KEYS['alice']}"}
TOKEN = {"Authorization": f"token {KEYS['alice']}"}
V1 = "v1.kernel.websocket.jupyter.org"
LEGACY = None
FRAME_MAX = 64 * 1024**2
#: seconds to wait for one message
TIMEOUT = 60.0
#: seconds for an attempt that may be repeated; waiting clients answer no ping, and are disconnected after 40
TRY = 15.0
CODE = "1+1"
#: the ways with which the others are compared
ON_STOCK, ON_OURS = "raw client, stock ipykernel", "raw client, our kernel"
#: idle seconds before a cell, as between the cells of an agent
REST = 1.0
#: cells that each way runs in its turn, and before the measurement
PER_ROUND = 20
WARM_UP = 20
LINES = 10_000
BYTES = 10_000_000
MANY_LINES = f"for number in range({LINES}): print(number)"
#: bytes that `MANY_LINES` prints
LINES_BYTES = sum(len(str(number)) + 1 for number in range(LINES))
MUCH_TEXT = f"print('0123456789' * {BYTES // 10}, end='')"
#: bytes of a picture of 5 MB in base64, as it is sent
PICTURE_BYTES = 5_000_000 // 3 * 4
PICTURE_MADE = f"from IPython.display import display; picture = 'iVBORw0K' * {PICTURE_BYTES // 8}"
PICTURE = "display({'image/png': picture}, raw=True)"


class Client(Protocol):
    """A client that runs cells on one kernel."""

    async def run(self, code: str) -> int:
        """Run a cell to its reply and its `idle`.

        Returns:
            bytes of printed text and shown pictures.
        """


class RawClient:
    """A client of jupyter_client, without a gateway."""

    def __init__(self, client: AsyncKernelClient) -> None:
        self._client = client

    async def run(self, code: str) -> int:
        """Run a cell."""
        msg_id, printed = self._client.execute(code), 0
        while (await self._client.get_shell_msg(timeout=TIMEOUT))["parent_header"].get("msg_id") != msg_id:
            pass
        while True:
            message = await self._client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") == msg_id:
                printed += shown(message["content"])
                if message["content"].get("execution_state") == "idle":
                    return printed


class SocketClient:
    """One WebSocket, in either framing; the same for every gateway."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._v1 = connection.selected_subprotocol == V1

    async def run(self, code: str) -> int:
        """Run a cell."""
        asked = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        msg_id = uuid4().hex
        header = {"msg_id": msg_id, "msg_type": "execute_request", "session": "b", "username": "b", "version": "5.4"}
        frame = (to_v1 if self._v1 else to_legacy)(header, asked)
        await self._connection.write_message(frame, binary=self._v1)
        replied, idle, printed = False, False, 0
        while not (replied and idle):
            channel, parent, content = await self._next()
            if parent.get("msg_id") == msg_id:
                printed += shown(content)
                replied = replied or channel == "shell"
                idle = idle or content.get("execution_state") == "idle"
        return printed

    async def _next(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        async with asyncio.timeout(TIMEOUT):
            frame = await self._connection.read_message()
        assert frame is not None, f"closed: {self._connection.close_code}"
        return from_v1(frame) if isinstance(frame, bytes) else from_legacy(frame)


def to_v1(header: dict[str, Any], content: dict[str, Any]) -> bytes:
    """Return a request on shell, in the binary subprotocol."""
    parts = [b"shell", *(orjson.dumps(part) for part in (header, {}, {}, content))]
    offsets = [8 * (len(parts) + 2)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)


def from_v1(frame: bytes) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the channel, parent header and content of a message."""
    (count,) = struct.unpack_from("<Q", frame)
    channel, _, parent, _, content, *_ = (
        frame[start:end] for start, end in pairwise(struct.unpack_from(f"<{count}Q", frame, 8))
    )
    return channel.decode(), orjson.loads(parent), orjson.loads(content)


def to_legacy(header: dict[str, Any], content: dict[str, Any]) -> bytes:
    """Return a request on shell, as JSON."""
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    return orjson.dumps(message | {"buffers": []})


def from_legacy(frame: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the channel, parent header and content of a message."""
    message = orjson.loads(frame)
    return message["channel"], message["parent_header"], message["content"]


def shown(content: dict[str, Any]) -> int:
    """Return the bytes that a message or an output shows, without a result's value."""
    return len(content.get("text", "")) + len(content.get("data", {}).get("image/png", ""))


class HttpClient:
    """`POST /v1/sessions/{id}/execute` on one kept connection."""

    def __init__(self, serving: Gateway, session: str) -> None:
        host, _, port = serving.url.removeprefix("http://").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT)
        self._path = f"/v1/sessions/{session}/execute"

    async def run(self, code: str) -> int:
        """Run a cell."""
        return self.execute(code)

    def execute(self, code: str) -> int:
        """Run a cell, as `run` does, without an event loop."""
        self._connection.request("POST", self._path, json.dumps({"code": code}), AUTHORIZATION)
        reply = orjson.loads(self._connection.getresponse().read())
        assert (reply["status"], reply["truncated"]) == ("ok", False), reply
        return sum(map(shown, reply["outputs"]))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class StreamClient:
    """`/v1/sessions/{id}/stream`, a WebSocket."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, serving: Gateway, session: str) -> StreamClient:
        """Connect to a session, which is made if it does not exist."""
        url = f"{serving.url.replace('http', 'ws', 1)}/v1/sessions/{session}/stream"
        asked = HTTPRequest(url, headers=AUTHORIZATION, connect_timeout=TIMEOUT)
        connection = await websocket_connect(asked, max_message_size=FRAME_MAX)
        connection.protocol.set_nodelay(True)  # type: ignore[union-attr]
        return cls(connection)

    async def run(self, code: str) -> int:
        """Run a cell."""
        await self._connection.write_message(json.dumps({"code": code}))
        printed = 0
        while True:
            frame = await self._connection.read_message()
            assert frame is not None, f"closed: {self._connection.close_code}"
            event = orjson.loads(frame)
            if event["type"] == "result":
                assert (event["status"], event["truncated"]) == ("ok", False), event
                return printed
            printed += shown(event.get("output", {}))


@dataclass(frozen=True)
class Server:
    """A gateway that serves."""

    url: str
    pid: int
    #: name of our kernel at this gateway
    kernelspec: str
    #: attempts to start a kernel and connect: the other gateway sometimes loses its own first request
    attempts: int = 1

    async def connect(self, framing: str | None) -> Client:
        """Start a kernel and return a client of it."""
        for _ in range(self.attempts - 1):
            with contextlib.suppress(HTTPTimeoutError, requests.Timeout):
                return await self._connect(framing, TRY)
            say("a connection was not answered, trying again")
        return await self._connect(framing, TIMEOUT)

    async def _connect(self, framing: str | None, patience: float) -> Client:
        kernel = await asyncio.to_thread(self._start_kernel, patience)
        url = f"{self.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?session_id={uuid4().hex}"
        connection = await websocket_connect(
            HTTPRequest(url, headers=TOKEN, connect_timeout=patience, request_timeout=patience),
            subprotocols=[framing] if framing else None,
            max_message_size=FRAME_MAX,
        )
        assert connection.selected_subprotocol == framing
        connection.protocol.set_nodelay(True)  # type: ignore[union-attr]
        return SocketClient(connection)

    def _start_kernel(self, patience: float) -> str:
        asked = {"name": self.kernelspec}
        made = requests.post(f"{self.url}/api/kernels", json=asked, headers=TOKEN, timeout=patience)
        assert made.status_code == 201, made.text
        kernel: str = made.json()["id"]
        return kernel

    def cpu(self) -> float:
        """Return the seconds of processor time that the gateway has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
