"""A server with real kernels and the parts of E2B's protocol that the SDK of its code interpreter uses.

Source: the observed requests of `e2b-code-interpreter` 2.11: `POST /v2/sandboxes`, `GET /v2/sandboxes`,
`DELETE /sandboxes/{id}` with `X-API-Key`, and `POST /execute`, whose answer arrives line by line.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

KEY = "e2b_0123456789abcdef0123456789abcdef"
COMMANDS = {
    "javascript": [str(Path(sys.executable).with_name("deno")), "run", "--quiet", "--allow-all", "--ext=js", "-"],
    "bash": ["bash"],
}
Event = dict[str, Any]


@dataclass
class Box:
    """One sandbox."""

    made_with: Event
    kernel: AsyncKernelManager | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def execute(self, code: str, language: str) -> AsyncIterator[Event]:
        if language in COMMANDS:
            async for event in _processed(COMMANDS[language], code):
                yield event
            return
        async with self.turn:
            if self.kernel is None:
                self.kernel = AsyncKernelManager()
                await self.kernel.start_kernel()
            client = self.kernel.client()
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=60)
                asked = client.execute(code)
                while True:
                    message = await client.get_iopub_msg()
                    if message["parent_header"].get("msg_id") != asked:
                        continue
                    if message["content"].get("execution_state") == "idle":
                        return
                    shown = _event(message)
                    if shown is not None:
                        yield shown
            finally:
                client.stop_channels()

    async def end(self) -> None:
        if self.kernel is not None:
            await self.kernel.shutdown_kernel(now=True)


def _event(message: dict[str, Any]) -> Event | None:
    content = message["content"]
    match message["msg_type"]:
        case "stream":
            return {"type": content["name"], "text": content["text"], "timestamp": "2026-11-21T00:00:00Z"}
        case "error":
            trace = "\n".join(content["traceback"])
            return {"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": trace}
        case "display_data" | "execute_result":
            data = content["data"]
            return {"type": "result", "text": data.get("text/plain"), "png": data.get("image/png")}
    return None


async def _processed(command: list[str], code: str) -> AsyncIterator[Event]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        stdout, stderr = await process.communicate(code.encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        yield {"type": name, "text": text.decode(), "timestamp": "2026-11-21T00:00:00Z"}
    if process.returncode:
        yield {"type": "error", "name": "Exit", "value": str(process.returncode), "traceback": ""}


@dataclass
class Server:
    """The server's URL and state."""

    url: str = ""
    boxes: dict[str, Box] = field(default_factory=dict)
    #: running executions
    works: set[asyncio.Task[Any]] = field(default_factory=set)
    #: HTTP status that replaces the answer to the next request
    refuse: int | None = None


class Handler(RequestHandler):
    """One request."""

    server: Server

    def initialize(self, server: Server) -> None:
        self.server = server

    def prepare(self) -> None:
        if self.server.refuse:
            self.set_status(self.server.refuse)
            self.server.refuse = None
            self.finish({"code": self.get_status(), "message": f"refused with {KEY}"})
        elif self.request.path != "/execute" and self.request.headers.get("X-API-Key") != KEY:
            self.set_status(401)
            self.finish({"code": 401, "message": f"not {self.request.headers.get('X-API-Key')}"})

    def get(self) -> None:
        self.finish("[]")

    async def post(self) -> None:
        body = json.loads(self.request.body)
        if self.request.path == "/execute":
            await self.execute(body)
            return
        name = secrets.token_hex(10)
        if body["templateID"] == "absent":
            self.set_status(404)
            self.finish({"code": 404, "message": "template 'absent' not found"})
            return
        self.server.boxes[name] = Box(body)
        self.set_status(201)
        self.finish({"templateID": body["templateID"], "sandboxID": name, "clientID": "c", "envdVersion": "0.4.0"})

    async def execute(self, body: Event) -> None:
        box = self.server.boxes.get(self.request.headers["E2b-Sandbox-Id"])
        if box is None:
            self.set_status(502)
            self.finish({"message": "The sandbox was not found"})
            return
        self.work = asyncio.current_task()
        assert self.work is not None
        self.server.works.add(self.work)
        self.work.add_done_callback(self.server.works.discard)
        with suppress(asyncio.CancelledError):
            async for event in box.execute(body["code"], body["language"] or "python"):
                self.write(json.dumps(event) + "\n")
                await self.flush()

    def on_connection_close(self) -> None:
        if (work := getattr(self, "work", None)) is not None:
            work.cancel()

    async def delete(self, name: str) -> None:
        box = self.server.boxes.pop(name, None)
        if box is None:
            self.set_status(404)
            self.finish({"code": 404, "message": "sandbox not found"})
            return
        self.set_status(204)
        await box.end()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Serve on a new port on loopback."""
    server = Server()
    handlers = [(path, Handler, {"server": server}) for path in ("/v2/sandboxes", "/sandboxes/([^/]+)", "/execute")]
    listening = HTTPServer(Application(handlers))
    (socket,) = bind_sockets(0, "127.0.0.1")
    listening.add_sockets([socket])
    server.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    try:
        yield server
    finally:
        listening.stop()
        await listening.close_all_connections()
        if server.works:  # closing the connections has cancelled them
            await asyncio.wait(server.works, timeout=10)
        for box in server.boxes.values():
            await box.end()
