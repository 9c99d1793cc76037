"""`/api/terminals`: shells on terminals, whose keys and output pass over a WebSocket."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import orjson
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError

from kernel_gateway.dialects.open_terminal.base import PLACE, USER, TerminalBaseHandler, TerminalHandler, sandbox_key
from kernel_gateway.dialects.open_terminal.desks import Terminal
from kernel_gateway.dialects.open_terminal.models import Auth, InputRequest, Resize
from kernel_gateway.http.request_body import validated
from kernel_gateway.http.sockets import ClientSocketHandler
from kernel_gateway.ports.headers import wants_websocket
from kernel_gateway.times import rfc3339
from sessions.guest.attached import Data, Program
from sessions.model import bounded_json
from sessions.model.errors import InvalidRequest, ProcessNotFound, SessionError
from sessions.model.tasks import spawn
from sessions.sandbox.sandbox import Sandbox

#: columns and rows of a new terminal
SIZE = (80, 24)
#: seconds within which a client must connect to a new terminal
CONNECT_SECONDS = 60.0
#: seconds for the first message of a socket. Source: Open Terminal 0.14.5
AUTH_SECONDS = 10.0
#: maximum bytes of a message: what somebody pastes
MESSAGE_MAX = 256 * 1024
#: seconds without progress after which the socket of a client that reads nothing is closed
STALL_SECONDS = 60.0
#: close codes. Source: Open Terminal 0.14.5
ENDED, UNAUTHORIZED, UNKNOWN, CONNECTED, STALLED = 1000, 4001, 4004, 4009, 4408


def told(terminal: Terminal) -> dict[str, Any]:
    """Return a terminal as clients see it."""
    return {"id": terminal.id, "created_at": terminal.created, "pid": terminal.command.pid}


class TerminalsHandler(TerminalHandler):
    """`/api/terminals`."""

    async def get(self) -> None:
        """List the chat's terminals."""
        terminals = self.desk(await self.sandbox()).terminals(self.chat)
        self.finish_json([told(terminal) for terminal in terminals])

    async def post(self) -> None:
        """Start a shell. It ends if no client connects to it soon."""
        await self.run_until_client_leaves(self._start())

    async def _start(self) -> None:
        sandbox, chat = await self.sandbox(), self.chat
        cwd = self.desk(sandbox).directory(chat)
        shell = Program(("/bin/bash", "-i", "-l"), cwd, {"TERM": "xterm-256color"}, takes_input=True, size=SIZE)
        terminal = Terminal(*await sandbox.commands.start(shell, None), chat, rfc3339(time.time()))
        self.desk(sandbox).add_terminal(terminal)
        spawn(_end_unless_connected(sandbox, terminal), "terminal without a client")
        self.finish_json(told(terminal))


async def _end_unless_connected(sandbox: Sandbox, terminal: Terminal) -> None:
    await asyncio.sleep(CONNECT_SECONDS)
    if not terminal.connected:
        await sandbox.commands.end(terminal.command)


class OutputHandler(TerminalHandler):
    """`/api/terminals/user/output`."""

    async def get(self) -> None:
        """Return the last output of the terminal that the user sees."""
        terminal = self.desk(await self.sandbox()).connected(self.chat)
        self.finish_json({"output": terminal.output.decode("utf-8", "replace")})


class InputHandler(TerminalHandler):
    """`/api/terminals/user/input`."""

    async def post(self) -> None:
        """Write into the terminal that the user sees."""
        await self.run_until_client_leaves(self._write(self.body(InputRequest)))

    async def _write(self, body: InputRequest) -> None:
        sandbox = await self.sandbox()
        terminal = self.desk(sandbox).connected(self.chat)
        content = body.input.encode("utf-8", "replace")
        sandbox.charge_upload(len(content))
        await terminal.command.write(content)
        self.set_status(HTTPStatus.OK)
        self.finish_json({"status": "ok"})


class OneTerminalHandler(TerminalBaseHandler, ClientSocketHandler):
    """`/api/terminals/{id}`: its WebSocket, and without an upgrade its description and its end.

    The key of a WebSocket comes in the first message, because browsers can send no header with it.
    """

    _terminal: Terminal | None = None
    _sandbox: Sandbox
    _pump: asyncio.Task[None] | None = None
    _deadline: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        """Check the host, and also the key of a request that is no WebSocket."""
        self.public = wants_websocket(self.request.method, self.request.headers)
        super().prepare()

    async def get(self, *args: str, **kwargs: str) -> None:
        """Open the WebSocket, or describe the terminal."""
        if self.public:
            await super().get(*args, **kwargs)
        else:
            self.finish_json(told(self.desk(await self.sandbox()).terminal(args[0], self.chat)))

    async def delete(self, name: str) -> None:
        """End the terminal."""
        sandbox = await self.sandbox()
        await sandbox.commands.end(self.desk(sandbox).terminal(name, self.chat).command)
        self.finish_json({"status": "deleted"})

    @property
    def max_message_size(self) -> int:
        """The maximum bytes of a message."""
        return MESSAGE_MAX

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Wait for the first message, for some seconds."""
        self._deadline = asyncio.get_running_loop().call_later(
            AUTH_SECONDS, self.close, UNAUTHORIZED, "Auth timeout or invalid payload"
        )

    async def on_message(self, message: str | bytes) -> None:
        """Handle the first message, or pass another one on."""
        if self._terminal is not None:
            await super().on_message(message)
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            await self._begin(message)

    def on_ping(self, data: bytes) -> None:
        """Count a control frame, if anything is counted yet."""
        if self._terminal is not None:
            super().on_ping(data)

    def on_pong(self, data: bytes) -> None:
        """Count a control frame, as `on_ping` does."""
        if self._terminal is not None:
            super().on_pong(data)

    async def _begin(self, message: str | bytes) -> None:
        """Check the key of the first message, and connect to the terminal."""
        try:
            auth = validated(Auth, bounded_json.loads(message))
            self.caller = self.gateway.keys.caller_of(auth.token)
        except (SessionError, orjson.JSONDecodeError):
            await asyncio.sleep(self.gateway.keys.refusals.pause())
            self.close(UNAUTHORIZED, "Invalid API key")
            return
        try:
            terminal = self._find(auth)
        except SessionError as failure:
            self.close(UNKNOWN, f"{failure.message} ({failure.code})"[:100])
            return
        if terminal.connected:
            self.close(CONNECTED, "Session already connected")
            return
        terminal.connect()
        self._terminal = terminal
        super().open()
        self._pump = spawn(self._pass_output(terminal), "terminal")

    def _find(self, auth: Auth) -> Terminal:
        self.tenant = self.caller.tenant
        self._connection.assign(self.tenant, urgent=False)
        self.gateway.keys.note_use(self.caller)
        headers = self.request.headers
        key = sandbox_key(self.caller, headers.get(USER, ""), headers.get(PLACE, ""))
        self._sandbox = self.gateway.sandboxes.get(key)
        chat = self.chat or (auth.chat_id if isinstance(auth.chat_id, str) else "")
        terminal = self.desk(self._sandbox).terminal(self.path_args[0], chat)
        self.take_place(key)
        return terminal

    async def _pass_output(self, terminal: Terminal) -> None:
        """Send the shell's output until its end, and close the socket then."""
        try:
            async for event in terminal.listener:
                if isinstance(event, Data):
                    terminal.keep(event)
                    async with asyncio.timeout(STALL_SECONDS):
                        await self.write_message(event.content, binary=True)
        except (WebSocketClosedError, StreamClosedError):
            return
        except TimeoutError:
            self.close(STALLED, "the client reads nothing")
            return
        self.close(ENDED, "Session has ended")

    async def received(self, message: str | bytes) -> None:
        """Pass keys on to the shell, or change its size. Other messages, such as `ping`, have no effect."""
        if self._terminal is None:
            return
        if isinstance(message, bytes):
            self._sandbox.charge_upload(len(message))
            with suppress(ProcessNotFound):
                await self._terminal.command.write(message)
            return
        try:
            size = validated(Resize, bounded_json.loads(message))
            await self._terminal.command.resize((size.cols, size.rows))
        except (InvalidRequest, ProcessNotFound, orjson.JSONDecodeError):
            return

    def on_close(self) -> None:
        """End the shell: nobody can come back to it."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._pump is not None:
            self._pump.cancel()
        if self._terminal is not None:
            spawn(self._sandbox.commands.end(self._terminal.command), "end of a terminal")
