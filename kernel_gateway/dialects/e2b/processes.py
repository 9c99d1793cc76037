"""The service `process.Process`: runs commands in a sandbox, also on terminals. Source: `envd`'s `process.proto`."""

from __future__ import annotations

import asyncio
import base64
import signal
from typing import Annotated, Any, Literal

from pydantic import Field
from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.e2b.connect import (
    STREAM,
    Envelopes,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
    envelope,
    message_of,
)
from kernel_gateway.dialects.e2b.models import Body
from kernel_gateway.http.keepalive import with_keepalive
from sessions.guest.attached import SIZE_MAX, Data, Ended, Program
from sessions.guest.processes import signal_process
from sessions.model.errors import ExecutionTimeout, InvalidRequest, ProcessNotFound, SessionError
from sessions.model.tasks import spawn
from sessions.model.units import ARGUMENTS
from sessions.model.values import valid_env
from sessions.sandbox.commands import AttachedCommand, Commands, Listener

#: signals that a client may send; early releases send numbers
SIGNALS = {
    "SIGNAL_SIGTERM": signal.SIGTERM,
    "SIGNAL_SIGKILL": signal.SIGKILL,
    15: signal.SIGTERM,
    9: signal.SIGKILL,
}
#: messages of streamed input that are handled before the event loop serves others; a chunk may contain 13,000
_AT_ONCE = 256
_Cells = Annotated[int, Field(gt=0, le=SIZE_MAX)]


class Size(Body):
    """Size of a terminal in characters."""

    cols: _Cells = 80
    rows: _Cells = 24


class Pty(Body):
    """A terminal."""

    size: Size = Field(default_factory=Size)


class Config(Body):
    """A program."""

    cmd: str = ""
    args: list[str] = Field(default_factory=list, max_length=ARGUMENTS)
    envs: dict[str, str] = Field(default_factory=dict)
    cwd: str = ""


class Start(Body):
    """A program to start."""

    process: Config
    pty: Pty | None = None
    tag: Annotated[str, Field(max_length=256)] | None = None
    stdin: bool = True


class Selector(Body):
    """Names a command."""

    pid: int = 0
    tag: str | None = None

    def of(self, commands: Commands) -> AttachedCommand:
        """Return the command that the selector names.

        Raises:
            ProcessNotFound: when there is no such command.
        """
        if self.tag is None:
            return commands.find(self.pid)
        for command in commands.attached():
            if command.tag == self.tag:
                return command
        raise ProcessNotFound(f"there is no command with the tag {self.tag[:64]!r}")


class Selected(Body):
    """A command."""

    process: Selector = Field(default_factory=Selector)


class Input(Body):
    """Bytes for a command, in base64."""

    stdin: str | None = None
    pty: str | None = None

    def content(self) -> bytes:
        """Return the decoded bytes.

        Raises:
            InvalidRequest: when the input is not base64.
        """
        try:
            return base64.b64decode(self.stdin or self.pty or "", validate=True)
        except ValueError:
            raise InvalidRequest("the input is no base64", field="input") from None


class SendInput(Selected):
    """Input for a command."""

    input: Input


class SendSignal(Selected):
    """A signal for a command."""

    signal: Literal["SIGNAL_SIGTERM", "SIGNAL_SIGKILL", 15, 9]


class Update(Selected):
    """Another size for a command's terminal."""

    pty: Pty


class StreamedInput(Body):
    """Input in a stream. An earlier message of the stream has named the command."""

    input: Input


class StreamedMessage(Body):
    """One message of streamed input. A message without either field is a keep-alive."""

    start: Selected | None = None
    data: StreamedInput | None = None


def end_model(ended: Ended, seconds: float) -> dict[str, Any]:
    """Return the end of a command as clients see it. Source: Go's `os.ProcessState`.

    Args:
        ended: the end of the command.
        seconds: the command's timeout.
    """
    killed = ended.code < 0
    status = (
        f"signal: {signal.strsignal(-ended.code) or -ended.code}".lower() if killed else f"exit status {ended.code}"
    )
    model = {"exitCode": -1 if killed else ended.code, "exited": not killed, "status": status}
    if ended.timed_out:
        model["error"] = f"the command ran longer than {seconds:g} s"
    elif killed:
        model["error"] = status
    return model


class CommandStream(ServerStreamHandler):
    """A call whose answer is the stream of a command's events."""

    async def follow(self, command: AttachedCommand, listener: Listener) -> None:
        """Send the command's events until its end. The command continues if the client leaves or reads nothing."""
        self.set_header("Content-Type", STREAM)
        self.http.stream.set_nodelay(True)
        try:
            await self.send({"event": {"start": {"pid": command.pid}}})
            async for event in with_keepalive(listener, self.pause()):
                if isinstance(event, Ended) and (late := self._late(event, command.program.timeout)):
                    self.finish_stream(late)
                    return
                await self.send({"event": self._shown(event)})
            self.finish_stream(command.failure)
        except StreamClosedError:
            return
        except TimeoutError:
            self.http.close()
        finally:
            command.leave(listener)

    def _late(self, ended: Ended, timeout: float | None) -> ExecutionTimeout | None:
        """Return the error for a command that ended at the client's timeout, or None for any other end."""
        if not ended.timed_out or timeout is None or timeout > self.sandbox.spec.max_execute_timeout:
            return None
        return ExecutionTimeout(f"the command ran longer than {timeout:g} s", timeout=timeout)

    def _shown(self, event: Data | Ended | None) -> dict[str, Any]:
        match event:
            case Data(stream, content):
                return {"data": {stream: base64.b64encode(content).decode()}}
            case Ended():
                return {"end": end_model(event, self.sandbox.spec.max_execute_timeout)}
        return {"keepalive": {}}


class StartHandler(CommandStream):
    """`Start`."""

    async def post(self) -> None:
        """Start a command and send its events."""
        body = message_of(Start, self.message())
        size = (body.pty.size.cols, body.pty.size.rows) if body.pty else None
        program = Program(
            (body.process.cmd, *body.process.args),
            body.process.cwd,
            valid_env(body.process.envs),
            body.stdin,
            size,
            # E2B's SDKs send the command's timeout as the timeout of the call, and E2B ends the command then.
            self.timeout(),
        )
        await self.run_until_client_leaves(self._run(program, body.tag))

    async def _run(self, program: Program, tag: str | None) -> None:
        await self.follow(*await self.sandbox.commands.start(program, tag))


class ConnectHandler(CommandStream):
    """`Connect`."""

    async def post(self) -> None:
        """Send the events of a running command from now on."""
        command = message_of(Selected, self.message()).process.of(self.sandbox.commands)
        await self.run_until_client_leaves(self._join(command))

    async def _join(self, command: AttachedCommand) -> None:
        await self.follow(command, command.listen())


class ListHandler(UnaryHandler):
    """`List`."""

    def post(self) -> None:
        """List the running commands."""
        self.finish_json({"processes": [_model(command) for command in self.sandbox.commands.attached()]})


def _model(command: AttachedCommand) -> dict[str, Any]:
    program, *arguments = command.program.argv
    config: dict[str, Any] = {"cmd": program, "args": arguments, "envs": dict(command.program.env or {})}
    if command.program.cwd:
        config["cwd"] = command.program.cwd
    return {"config": config, "pid": command.pid} | ({} if command.tag is None else {"tag": command.tag})


class SendInputHandler(UnaryHandler):
    """`SendInput`."""

    async def post(self) -> None:
        """Write input to a command."""
        body = self.body(SendInput)
        content = body.input.content()
        self.sandbox.charge_upload(len(content))
        await self.run_until_client_leaves(self._write(body.process.of(self.sandbox.commands), content))

    async def _write(self, command: AttachedCommand, content: bytes) -> None:
        await command.write(content)
        self.finish_json({})


class CloseStdinHandler(UnaryHandler):
    """`CloseStdin`."""

    async def post(self) -> None:
        """End a command's input."""
        await self.run_until_client_leaves(self._close(self.body(Selected).process.of(self.sandbox.commands)))

    async def _close(self, command: AttachedCommand) -> None:
        await command.close_input()
        self.finish_json({})


class SendSignalHandler(UnaryHandler):
    """`SendSignal`."""

    async def post(self) -> None:
        """Send a signal to a command."""
        body = self.body(SendSignal)
        command = body.process.of(self.sandbox.commands)
        await signal_process(self.sandbox, command.pid, SIGNALS[body.signal])
        self.finish_json({})


class UpdateHandler(UnaryHandler):
    """`Update`."""

    async def post(self) -> None:
        """Change the size of a command's terminal."""
        body = self.body(Update)
        size = (body.pty.size.cols, body.pty.size.rows)
        await self.run_until_client_leaves(self._resize(body.process.of(self.sandbox.commands), size))

    async def _resize(self, command: AttachedCommand, size: tuple[int, int]) -> None:
        await command.resize(size)
        self.finish_json({})


class StreamInputHandler(StreamHandler):
    """`StreamInput`: writes input to a command while the input arrives."""

    _command: AttachedCommand | None = None
    #: the reason if the input is refused. It is sent after the whole body was read: if it were sent earlier, tornado
    #: would close the connection before the client has read it
    _refusal: SessionError | None = None
    #: writes the messages of a chunk; the next chunk waits for it
    _writing: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Check the request, and allow a body as large as a workspace."""
        self._envelopes = Envelopes()
        await super().prepare()
        if hasattr(self, "sandbox"):
            most = self.gateway.settings.disk
            self.http.set_max_body_size(most)
            self.http.set_body_timeout(self.gateway.settings.max_execute_timeout)

    async def data_received(self, chunk: bytes) -> None:
        """Write the input of the next messages. The client waits while the command does not read."""
        if self.request.method != "POST" or self._refusal is not None:
            return
        self._writing = spawn(self._take(chunk), "input of a command")
        await asyncio.wait({self._writing})
        if not self._writing.cancelled() and isinstance(error := self._writing.exception(), SessionError):
            self._refusal = error

    async def _take(self, chunk: bytes) -> None:
        for number, message in enumerate(self._envelopes.read(chunk), 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            told = message_of(StreamedMessage, message)
            if told.start is not None and self._command is None:
                self._command = told.start.process.of(self.sandbox.commands)
            elif told.data is not None:
                if self._command is None:
                    raise InvalidRequest("the first message must name the command", field="start")
                content = told.data.input.content()
                self.sandbox.charge_upload(len(content))
                await self._command.write(content)

    def on_connection_close(self) -> None:
        """Stop writing, because the client has left."""
        super().on_connection_close()
        if self._writing is not None:
            self._writing.cancel()

    def post(self) -> None:
        """Answer that all input is written."""
        if self._refusal is None and not self._envelopes.complete:
            self._refusal = InvalidRequest("the last message is not complete", field="body")
        if self._refusal is not None:
            raise self._refusal
        self.set_header("Content-Type", STREAM)
        self.write(envelope({}))
        self.finish_stream()
