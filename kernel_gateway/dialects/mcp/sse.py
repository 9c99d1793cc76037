"""`/sse` and `/messages/`: the transport of 2024-11-05, for vLLM's tool server.

vLLM takes the server's name as the namespace of its tools, which must be `python`, and calls one tool of this name.
Each stream has a session of its own, which ends with the stream: nobody else knows its name.
Sources: the MCP specification 2024-11-05, and vLLM's `MCPToolServer`.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from http import HTTPStatus

import orjson
from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.mcp.calls import Call
from kernel_gateway.dialects.mcp.handler import EVENT_STREAM, PAUSE
from kernel_gateway.dialects.mcp.results import Shown, of_failure, text_block
from kernel_gateway.dialects.mcp.rpc import Json, Message, RpcError, answer, refusal
from kernel_gateway.dialects.mcp.run_code import spec_of
from kernel_gateway.dialects.mcp.server import Server
from kernel_gateway.dialects.mcp.tools import INSTRUCTIONS, PYTHON
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.plain_text import plain_outputs
from kernel_gateway.http.request_body import Body, validated
from kernel_gateway.identity.auth import Caller
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionError, SessionNotFound
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, SessionKey, StateChange, Status

#: messages of one stream that are being answered
OPEN_MAX = 16


class PythonCall(Body):
    """Arguments of `python`."""

    code: str


class PythonTool:
    """The tool of vLLM's tool server."""

    name = "python"
    instructions = INSTRUCTIONS

    def listed(self) -> list[Json]:
        """Return the description of the tool."""
        return [PYTHON]

    async def call(self, call: Call) -> Json:
        """Refuse: the tool runs only on a stream, which has the session."""
        raise InvalidRequest(f"{call.name} is a tool of a stream")


@dataclass
class Streams:
    """The open streams by id."""

    server: Server = field(default_factory=lambda: Server(PythonTool()))
    open: dict[str, StreamHandler] = field(default_factory=dict)


class SseHandler(JsonHandler):
    """Base of the handlers of this transport."""

    def initialize(self, gateway: Gateway, dialect: str = "none", streams: Streams | None = None) -> None:
        """Set up the handler with the open streams."""
        super().initialize(gateway, dialect)
        self.streams = Streams() if streams is None else streams

    def authenticate(self) -> Caller:
        """Return the caller by a key, which may be a password in the URL: vLLM sends no header of its own."""
        keys = self.gateway.keys
        return keys.local_caller(self.request) or keys.caller(self.request, in_query=True, as_password=True)


class StreamHandler(SseHandler):
    """`/sse`."""

    async def get(self) -> None:
        """Send the address for messages, then the answers to them, until the client leaves."""
        self._id = secrets.token_hex(16)
        self._session = SessionKey(self.tenant, f"s-{secrets.token_hex(8)}")
        self._answers: set[asyncio.Task[None]] = set()
        self.set_header("Content-Type", EVENT_STREAM)
        self.set_header("X-Accel-Buffering", "no")
        self.http.stream.set_nodelay(True)
        self.streams.open[self._id] = self
        try:
            await self.run_until_client_leaves(self._serve())
        finally:
            del self.streams.open[self._id]
            for task in self._answers:
                task.cancel()
            if any(session.key == self._session for session in self.gateway.registry.of(self.tenant)):
                await self.gateway.registry.end(self._session)

    async def _serve(self) -> None:
        try:
            await self._send(b"event: endpoint\ndata: messages/?session_id=%s\n\n" % self._id.encode())
            while True:
                await asyncio.sleep(PAUSE)
                await self._send(b":\n\n")
        except StreamClosedError:
            return

    async def _send(self, text: bytes) -> None:
        self.write(text)
        await self.flush()

    def take(self, message: Message) -> None:
        """Answer a message, on this stream."""
        if message.id is None or message.response is not None:
            return
        if len(self._answers) >= OPEN_MAX:
            raise QuotaExceeded(f"at most {OPEN_MAX} messages of a stream are answered at a time", max=OPEN_MAX)
        task = spawn(self._answer(message), "message of a stream")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, message: Message) -> None:
        try:
            if message.method == "tools/call":
                _, arguments = self.streams.server.tool_of(message)
                told = answer(message.id, await self._python(arguments))
            else:
                told = answer(message.id, self.streams.server.legacy(message))
        except RpcError as error:
            told = refusal(message.id, error)
        try:
            await self._send(b"event: message\ndata: %s\n\n" % exact_json.dumps(told))
        except StreamClosedError:
            return

    async def _python(self, arguments: Json) -> Json:
        try:
            request = ExecuteRequest(validated(PythonCall, arguments).code, self.tenant_settings.valid_timeout(None))
            spec = spec_of(self.gateway, self.tenant, "python")
            session = await self.gateway.registry.get_or_create(self._session, spec)
            async with session.execute(request) as execution:
                result = await execution.result()
        except SessionError as error:
            return of_failure(error)
        outputs, _ = await plain_outputs(result.outputs)
        shown = Shown()
        for output in outputs:
            shown.add(output)
        notes = []
        if result.state not in {StateChange.NEW, StateChange.PRESERVED}:
            notes.append(f"[state {result.state.value}: {result.state_reason}]\n")
        if result.error is not None:
            notes.append(f"[{result.error.message}]\n")
        told: Json = {"content": [text_block("".join(notes) + shown.text), *shown.pictures]}
        return told if result.status is Status.OK else told | {"isError": True}


class MessagesHandler(SseHandler):
    """`/messages/`."""

    def post(self) -> None:
        """Take a message; its answer goes to the stream."""
        name = self.raw_argument("session_id")
        if name is None:
            raise InvalidRequest("the address has no session_id", field="session_id")
        stream = self.streams.open.get(name)
        if stream is None or stream.tenant != self.tenant:
            raise SessionNotFound("there is no such stream")
        try:
            stream.take(Message.of(exact_json.loads(self._received)))
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the body is no valid JSON: {error.msg}", field="body") from None
        except RpcError as error:
            raise InvalidRequest(error.message, field="body") from None
        self.set_status(HTTPStatus.ACCEPTED)
        self.finish("Accepted")
