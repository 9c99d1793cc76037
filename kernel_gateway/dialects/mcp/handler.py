"""`/mcp`: one JSON-RPC message in; JSON out, or a stream of server-sent events when the answer takes long."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.mcp.asking import can_ask
from kernel_gateway.dialects.mcp.calls import NeedsInput
from kernel_gateway.dialects.mcp.eras import (
    UNNAMED,
    VERSION_HEADER,
    capabilities_of,
    check_mirrored,
    check_modern,
    is_modern,
)
from kernel_gateway.dialects.mcp.request_state import Question, Seals, digest_of
from kernel_gateway.dialects.mcp.resent import Sender
from kernel_gateway.dialects.mcp.rpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Json,
    Message,
    RpcError,
    answer,
    notification,
    refusal,
)
from kernel_gateway.dialects.mcp.server import Server
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.accept import accepts
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.metered import Metered
from sessions.model import exact_json
from sessions.model.errors import SessionError
from sessions.model.tasks import spawn

#: seconds between two reports of progress
PROGRESS = 5.0
#: seconds of silence after which a comment is sent, because proxies drop idle connections
PAUSE = 15.0
#: messages of one batch; only the oldest legacy version has batches
BATCH_MAX = 16
#: header of legacy clients, which repeat what `initialize` has answered
SESSION_HEADER = "Mcp-Session-Id"
#: how the header's value begins if the client can ask its user
ASKS = "asks-"
EVENT_STREAM = "text/event-stream"


class McpHandler(JsonHandler):
    """`/mcp`."""

    key_in_query = True
    #: whether the answer is a stream that has begun
    _streams = False
    _modern = False
    #: id of the request, for its answer
    _number: str | int | None = None

    def initialize(self, gateway: Gateway, dialect: str = "none", server: Server | None = None) -> None:
        """Set up the handler for a server's tools."""
        super().initialize(gateway, dialect)
        if server is None:
            raise TypeError("a route of MCP needs a server")
        self.server = server

    async def post(self) -> None:
        """Answer a message."""
        await self.run_until_client_leaves(self._post())

    def render_failure(self, failure: SessionError) -> Json:
        """Return a failure that no tool has met, such as an unknown key, as a JSON-RPC error."""
        code = int(failure.code.removeprefix("SB"))  # the protocol reserves the negative numbers
        text = f"{failure.message} {failure.resolution}"
        return refusal(self._number, RpcError(code, text, failure.as_dict() | {"request_id": self.request_id}))

    # -- messages -------------------------------------------------------------------------------------------

    async def _post(self) -> None:
        delivered: list[Callable[[], None]] = []
        try:
            told, status = await self._told(delivered)
            await self._finish(told, status)
        except StreamClosedError:
            return  # the client has left, and may send the call again
        for each in delivered:
            each()

    async def _told(self, delivered: list[Callable[[], None]]) -> tuple[Any, HTTPStatus]:
        """Return the answer, None for no content, and its status."""
        try:
            self._check_origin()
            value = self._value()
            self._modern = is_modern(self.request.headers, value)
            if isinstance(value, list):
                return await self._batch(value, delivered), HTTPStatus.OK
            message = Message.of(value)
            self._number = message.id
            if self._modern:
                self._check_modern(message)
            told = await self._answered(message, delivered)
        except RpcError as error:
            readable = self._number is not None and not self._modern  # legacy clients read no body of a 4xx
            return refusal(self._number, error), HTTPStatus.OK if readable else error.status
        return told, HTTPStatus.ACCEPTED if told is None else HTTPStatus.OK

    def _check_origin(self) -> None:
        """Refuse pages of other origins, also with a key: the protocol demands it against rebound DNS names."""
        origin = self.request.headers.get("Origin")
        if origin is None or self.gateway.origins.allow(origin):
            return
        if origin.partition("://")[2].lower() != self.request.host.lower():
            text = "pages of this origin may not use the gateway; its operator can add it to `allowed_origins`"
            raise RpcError(INVALID_REQUEST, text, status=HTTPStatus.FORBIDDEN)

    def _value(self) -> Any:
        try:
            return exact_json.loads(self._received)
        except orjson.JSONDecodeError as error:
            raise RpcError(PARSE_ERROR, f"the body is no valid JSON: {error.msg}") from None

    def _check_modern(self, message: Message) -> None:
        if message.response is not None:
            raise RpcError(INVALID_REQUEST, "this version of the protocol has no responses of clients")
        if not (self._accepts("application/json") and self._accepts(EVENT_STREAM)):
            text = f"Accept must list application/json and {EVENT_STREAM}"
            raise RpcError(INVALID_REQUEST, text, status=HTTPStatus.NOT_ACCEPTABLE)
        check_modern(self.request.headers, message)

    def _accepts(self, media_type: str) -> bool:
        return accepts(self.request.headers.get("Accept", ""), media_type)

    async def _batch(self, values: list[Any], delivered: list[Callable[[], None]]) -> list[Json] | None:
        if self._modern or self.request.headers.get(VERSION_HEADER, UNNAMED) != UNNAMED:
            raise RpcError(INVALID_REQUEST, "this version of the protocol has no batches")
        if not 0 < len(values) <= BATCH_MAX:
            raise RpcError(INVALID_REQUEST, f"a batch has 1 to {BATCH_MAX} messages")
        answers = []
        for value in values:
            self._number = None
            try:
                message = Message.of(value)
                self._number = message.id
                told = await self._answered(message, delivered)
            except RpcError as error:
                told = refusal(self._number, error)
            if told is not None:
                answers.append(told)
        return answers or None

    async def _answered(self, message: Message, delivered: list[Callable[[], None]]) -> Json | None:
        """Return the response to a message; None: there is none."""
        if message.response is not None:
            self._take_response(message)
            return None
        if message.id is None:
            if message.method == "notifications/cancelled" and not self._modern:
                self._cancel(message.params.get("requestId"))
            return None
        if message.method == "tools/call":
            return answer(message.id, await self._call(message, delivered))
        if self._modern:
            return answer(message.id, self.server.modern(message))
        told = self.server.legacy(message)
        if message.method == "initialize":
            able = can_ask(message.params.get("capabilities"))
            self.set_header(SESSION_HEADER, f"{ASKS if able else ''}{secrets.token_hex(16)}")
        return answer(message.id, told)

    def _take_response(self, message: Message) -> None:
        """Give the user's answer to the call that waits for it."""
        tenant, waiting = self.server.asked.get(str(message.id), ("", None))
        if waiting is not None and tenant == self.tenant and not waiting.done():
            result = (message.response or {}).get("result")
            waiting.set_result(result if isinstance(result, dict) else {})

    # -- calls of tools -------------------------------------------------------------------------------------

    async def _call(self, message: Message, delivered: list[Callable[[], None]]) -> Json:
        tool, arguments = self.server.tool_of(message)
        if self._modern:
            check_mirrored(self.request.headers, tool["inputSchema"], arguments)
        call = HttpCall(self, message, arguments, delivered)
        open_as = (self.tenant, self._protocol_session, message.id or 0)
        self.server.open[open_as] = call.on_cancelled
        task = spawn(Metered(self._run(call), self.count_time), "call of a tool")
        try:
            await self._report_until(task, message.meta.get("progressToken"))
            return task.result()
        finally:
            self.server.open.pop(open_as, None)
            task.cancel()
            await asyncio.wait({task})

    async def _run(self, call: HttpCall) -> Json:
        try:
            result = await self.server.tools.call(call)
        except NeedsInput as needed:
            state = self.seals.seal(needed.question, self.tenant, call.digest)
            asked = {"inputRequests": needed.requests, "requestState": state}
            return self.server.complete({"resultType": "input_required"} | asked)
        return self.server.complete(result) if self._modern else result

    async def _report_until(self, task: asyncio.Task[Json], token: Any) -> None:
        """Tell the client every few seconds that a task goes on."""
        loop = asyncio.get_running_loop()
        begun = quiet_since = loop.time()
        while not (await asyncio.wait({task}, timeout=PROGRESS))[0]:
            now = loop.time()
            if not self._accepts(EVENT_STREAM):
                continue
            if isinstance(token, str | int) and not isinstance(token, bool):
                told = {"progressToken": token, "progress": round(now - begun, 3)}
                text = f"running for {now - begun:.0f} s"
                await self.send_event(notification("notifications/progress", told | {"message": text}))
                quiet_since = now
            elif now - quiet_since >= PAUSE - PROGRESS / 2:
                await self._send(b":\n\n")
                quiet_since = now

    @property
    def seals(self) -> Seals:
        """What seals the questions to modern clients."""
        return Seals(self.gateway.links_secret)

    @property
    def _protocol_session(self) -> str:
        return self.request.headers.get(SESSION_HEADER, "")

    def sender_of(self, message: Message) -> Sender:
        """Return who sends a request. Modern clients have no session of the protocol, and ids that others use, too."""
        if self._modern or not self._protocol_session or message.id is None:
            return None
        return self._protocol_session, message.id

    def capabilities_for(self, message: Message) -> Json:
        """Return what the client of a call can do. A legacy client has said it at its beginning."""
        if self._modern:
            return capabilities_of(message)
        return {"elicitation": {}} if self._protocol_session.startswith(ASKS) and self._accepts(EVENT_STREAM) else {}

    @property
    def modern(self) -> bool:
        """Whether the client is one of the modern era."""
        return self._modern

    def _cancel(self, number: object) -> None:
        if self._protocol_session and isinstance(number, str | int):  # else the id belongs to anyone
            for cancel in self.server.open.get((self.tenant, self._protocol_session, number), ()):
                cancel()

    # -- the answer -----------------------------------------------------------------------------------------

    async def send_event(self, message: Json) -> None:
        """Send a message on the stream, which begins now if it has not."""
        await self._send(b"event: message\ndata: %s\n\n" % exact_json.dumps(message))

    async def _send(self, text: bytes) -> None:
        if not self._streams:
            self._streams = True
            self.set_header("Content-Type", EVENT_STREAM)
            self.set_header("X-Accel-Buffering", "no")
            self.http.stream.set_nodelay(True)
        self.write(text)
        await self.flush()

    async def _finish(self, told: Any, status: HTTPStatus) -> None:
        """Send the answer. The connection has taken it when this method returns."""
        if self._streams:
            await self.send_event(told)
            await self.finish()
            return
        self.set_status(status)
        if told is None:
            await self.finish()
            return
        self.set_header("Content-Type", "application/json")
        await self.finish(exact_json.dumps(told))


class HttpCall:
    """A call of a tool over `/mcp`."""

    def __init__(
        self, handler: McpHandler, message: Message, arguments: Json, delivered: list[Callable[[], None]]
    ) -> None:
        """Read the call.

        Raises:
            RpcError: when its `requestState` is not valid.
        """
        self.name = str(message.params["name"])
        self.arguments = arguments
        self.tenant = handler.tenant
        self.digest = digest_of(self.name, arguments)
        self.sender = handler.sender_of(message)
        self.capabilities = handler.capabilities_for(message)
        self.ends_with_client = handler.modern
        self.on_delivered = delivered
        self.on_cancelled: list[Callable[[], None]] = []
        self.answered = self._answer_in(message, handler.seals) if handler.modern else None
        self._handler = handler

    def _answer_in(self, message: Message, seals: Seals) -> tuple[Question, Json] | None:
        """Return the question that a modern client answers, and its results."""
        if (state := message.params.get("requestState")) is None:
            return None
        asked = seals.open(state, self.tenant, self.digest)
        results = message.params.get("inputResponses")
        return asked, results if isinstance(results, dict) else {}

    async def ask(self, requests: dict[str, Json], asked: Question) -> Json:
        """Ask a modern client by the answer of the call, a legacy client on the call's stream."""
        if self._handler.modern:
            raise NeedsInput(requests, asked)
        return {name: await self._ask(request) for name, request in requests.items()}

    async def _ask(self, request: Json) -> Json:
        """Send a request to a legacy client, and return its result."""
        open_requests, number = self._handler.server.asked, f"ask-{secrets.token_hex(16)}"
        waiting: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        open_requests[number] = (self.tenant, waiting)
        try:
            await self._handler.send_event({"jsonrpc": "2.0", "id": number} | request)
            return await waiting
        finally:
            del open_requests[number]
