"""The WebSocket stream: JSON frames in, events out.

A client sends `{"code": …, "id"?: …}` with the fields of execute, `{"input": "text"}` to answer `input()` (null ends
the input), `{"tool_call": …, "value": …}` to answer a call of a tool, `{"command": …, "id"?: …}` with the fields of
debug to act on a debugged cell, or `{"interrupt": true}`.
The gateway sends the events of a streamed execute, each with the `id` of its cell. Cells run one after the other. When
the session ends, the gateway sends the results of the cells and closes the socket.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from tornado.websocket import WebSocketClosedError

from kernel_gateway.dialects.native.debug import DebugInfo
from kernel_gateway.dialects.native.models import Execute, check_language, result_json
from kernel_gateway.dialects.native.tools import ToolAnswer
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.debugging import DebugCommand, obey
from kernel_gateway.http.plain_text import PlainText
from kernel_gateway.http.request_body import Body, validated
from kernel_gateway.http.sockets import SocketHandler
from sessions.cells.execution import END_OF_INPUT, Execution
from sessions.cells.idempotency import Attempt
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import SessionKey
from sessions.session.executions import Running
from sessions.tools.calls import CLIENT_LEFT

#: maximum number of cells that wait on one socket
QUEUE = 16
#: maximum characters of a cell's id, which every event repeats
ID_MAX = 128
#: maximum number of commands for the debugger that wait for their answers on one socket
COMMANDS = 8

_Id = Annotated[str, Field(max_length=ID_MAX)] | int | None


class CodeFrame(Execute):
    """Run a cell."""

    id: _Id = Field(None, description="repeated in every event of this cell")
    wait: Literal[True] = Field(True, description="no frame waits")  # noqa: FBT003


class InputFrame(Body):
    """Answer the running cell's `input()`."""

    input: str | None = Field(description="null: end of the input, as Ctrl-D")


class DebugFrame(DebugCommand):
    """Act on the debugged cell, or look at the exception that has ended one. A frame with `debug` launches a cell."""

    id: _Id = Field(None, description="repeated in the answer")


class InterruptFrame(Body):
    """Interrupt the running cell."""

    interrupt: Literal[True]


class StreamHandler(SocketHandler):
    """`/v1/sessions/{name}/stream`."""

    _runner: asyncio.Task[None] | None = None
    _running: Running | None = None
    #: True if the current cell continues when its client leaves
    _continues_without_client = False
    _client_left = False

    def initialize(self, gateway: Gateway, dialect: str = "none") -> None:
        """Begin without commands."""
        super().initialize(gateway, dialect)
        #: commands for the debugger under way
        self._commands: set[asyncio.Task[None]] = set()

    def session_key(self) -> SessionKey:
        """Return the key of the tenant's session of this name, which need not exist yet."""
        return SessionKey(self.tenant, self.path_args[0])

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Start to run cells."""
        super().open()
        #: waiting cells, each with the size of its frame in bytes
        self._cells: asyncio.Queue[tuple[CodeFrame, int]] = asyncio.Queue(QUEUE)
        self._runner = spawn(self._run_cells(), "stream")

    async def received(self, message: str | bytes) -> None:
        """Handle a frame. A bad frame is answered with an error, and the socket stays open."""
        self._session.touch()
        mark: dict[str, Any] = {}
        try:
            frame = _parsed(message)
            mark = _id_field(frame.get("id"))
            await self._take(frame, len(message))
        except SessionError as error:
            await self._send({"type": "error", "error": error.as_dict(), **mark})

    async def _take(self, frame: dict[str, Any], size: int) -> None:
        if "interrupt" in frame:
            validated(InterruptFrame, frame)
            await self._session.interrupt()
        elif "command" in frame:
            self._command(validated(DebugFrame, frame))
        elif "tool_call" in frame:
            validated(ToolAnswer, frame).give(None if self._running is None else self._running.tools)
        elif "input" in frame:
            answer = validated(InputFrame, frame).input
            if self._running is None or not self._running.answer(END_OF_INPUT if answer is None else answer):
                raise InvalidRequest("no cell of this socket asks for input", field="input")
        else:
            self._enqueue(validated(CodeFrame, frame), size)

    def _command(self, asked: DebugFrame) -> None:
        """Do a command for the debugger. The next frame need not wait for it."""
        if asked.command == "launch":
            raise InvalidRequest("to launch a cell, send its `code` with `debug`", field="command")
        if len(self._commands) >= COMMANDS:
            raise QuotaExceeded(f"at most {COMMANDS} commands can wait on one socket", max=COMMANDS)
        task = spawn(self._obey(asked), "command for a debugger")
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _obey(self, asked: DebugFrame) -> None:
        mark = _id_field(asked.id)
        try:
            seen = await obey(self._session, asked, self.tenant_settings.valid_timeout(asked.timeout))
            await self._send({"type": "debug", **DebugInfo.of(seen).model_dump(mode="json"), **mark})
        except SessionError as error:
            await self._send({"type": "error", "error": error.as_dict(), **mark})

    def _enqueue(self, cell: CodeFrame, size: int) -> None:
        cell.request(self.tenant_settings)  # refuse an invalid cell now, not when its turn comes
        if self._cells.full():
            raise QuotaExceeded(f"at most {QUEUE} cells can wait on one socket", max=QUEUE)
        if not self._account.take(size):
            raise self.gateway.incoming.refusal("cells that wait", self.tenant)
        self._cells.put_nowait((cell, size))

    async def _run_cells(self) -> None:
        while not self._client_left:
            cell, size = await self._cells.get()
            mark = _id_field(cell.id)
            try:
                await self._run_cell(cell, mark)
            except SessionError as error:
                await self._send({"type": "error", "error": error.as_dict(), **mark})
            finally:
                self._continues_without_client = False
                self._account.take(-size)
                self._cells.task_done()

    async def _run_cell(self, cell: CodeFrame, mark: dict[str, Any]) -> None:
        request = cell.request(self.tenant_settings, interactive=True)
        check_language(self.gateway.registry, self._session, cell.language)
        self._continues_without_client = cell.on_disconnect == "continue"
        self._session.touch()
        plain = PlainText() if cell.plain else None
        try:
            async with self._session.execute(request) as execution:
                self._running = execution
                async for event in execution:
                    await self._send((await plain.event_in_time(event) if plain else event) | mark)
                    self._end_input()
                result = await execution.result()
                self._running = None
                if plain and execution.gap:  # all outputs are sent again
                    plain = PlainText()
                last = result_json(self._session, result, outputs=execution.gap, plain=plain)
                await self._send({"type": "result", **last, **mark})
        except asyncio.CancelledError:
            if cell.debug is not None:
                self._session.debugger.leave()
            raise
        finally:
            self._running = None

    async def _send(self, event: dict[str, Any]) -> None:
        """Send one event, and wait while the client reads slowly."""
        if self._client_left:
            return
        try:
            await self.write_message(exact_json.dumps(event))
        except WebSocketClosedError:
            self.on_close()

    async def send_last_messages(self) -> None:
        """Wait until the running cell has its result and the waiting cells are refused."""
        await self._cells.join()

    def on_close(self) -> None:
        """Drop the waiting cells. Interrupt the running cell only if its client asked for that.

        A cell with an idempotency key has a task of its own, which continues.
        """
        super().on_close()
        self._client_left = True
        self._end_input()
        for command in self._commands:
            command.cancel()
        continues = self._continues_without_client and not isinstance(self._running, Attempt)
        if self._runner is not None and not continues:
            self._runner.cancel()

    def _end_input(self) -> None:
        """End the input and the calls of tools of a cell whose client has left, unless the cell has an idempotency key.

        The client of a cell with such a key may return and answer.
        """
        if self._client_left and isinstance(self._running, Execution):
            self._running.answer(END_OF_INPUT)
            self._running.tools.close(CLIENT_LEFT)


def _id_field(cell_id: object) -> dict[str, Any]:
    """Return the event's field `id`, or {} if the client sent no valid id."""
    return {"id": cell_id} if isinstance(cell_id, str | int) and len(str(cell_id)) <= ID_MAX else {}


def _parsed(message: str | bytes) -> dict[str, Any]:
    try:
        frame = exact_json.loads(message)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the frame is no valid JSON: {error.msg}") from None
    if not isinstance(frame, dict):
        raise InvalidRequest("the frame is no JSON object")
    return frame
