"""`kernel-gateway mcp`: speak MCP on standard input and output, for desktop clients that start a program.

Each line of input is a message. It is sent to `/mcp` of a gateway, and what the gateway answers is written as lines.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from kernel_gateway.cli.client_command import add_examples, add_gateway
from kernel_gateway.cli.flags import client_from
from kernel_gateway.client.gateway import lines_of
from kernel_gateway.client_config import Client
from kernel_gateway.observe import logs
from sessions.model import exact_json
from sessions.model.tasks import spawn

#: a JSON-RPC message
Json = dict[str, Any]
#: how often a message is sent again after its stream has broken, and the seconds between; a cell runs once nevertheless
ATTEMPTS, PAUSE = 4, 0.5
#: seconds in which a gateway accepts a connection; its answer may take as long as it wants
TIMEOUT = httpx.Timeout(None, connect=20.0)
#: code of the error for a message that the gateway has not answered. Source: JSON-RPC 2.0
INTERNAL = -32603
_META = "io.modelcontextprotocol/"
_VERSION, _SESSION = "MCP-Protocol-Version", "Mcp-Session-Id"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_gateway(parser)
    parser.add_argument(
        "--isolation",
        metavar="VALUE",
        help="start a gateway of its own with this isolation, docker or process, and end it afterwards: then --url and "
        "--key are not needed",
    )
    add_examples(
        parser,
        "kernel-gateway mcp --url http://127.0.0.1:8888 --key KEY",
        "kernel-gateway mcp --isolation docker",
    )


def main(arguments: argparse.Namespace) -> int:
    """Serve until the end of the input.

    Returns:
        0 at the end of the input, 1 when the gateway of its own does not start.
    """
    logs.set_up()  # standard output is for the protocol
    client = client_from(arguments)
    try:
        asyncio.run(_main(client, arguments))
    except _NotStarted as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:  # ended by a signal
        return 0
    return 0


async def _main(client: Client, arguments: argparse.Namespace) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if arguments.isolation is None:
        await _serve(client)
        return
    async with _own_gateway(arguments.isolation, getattr(arguments, "config", None)) as own:
        await _serve(own)


async def _serve(client: Client) -> None:
    headers = {"Authorization": f"Bearer {client.credential()}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT, trust_env=False) as http:
        await _Bridge(http, f"{client.url.rstrip('/')}/mcp").run()


class _NotStarted(Exception):
    """The gateway of its own does not start; the text says why."""


@asynccontextmanager
async def _own_gateway(isolation: str, config: object) -> AsyncIterator[Client]:
    """Start a gateway on a free port of this machine, with a state directory of its own."""
    with tempfile.TemporaryDirectory(prefix="kernel-gateway-mcp-") as directory:
        flags = ["--isolation", isolation, "--host", "127.0.0.1", "--port", "0", "--state-dir", directory, "--keys", ""]
        flags += [] if config is None else ["--config", str(config)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kernel_gateway", "serve", *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C ends this command, which then ends the gateway
        )
        if process.stderr is None:
            raise TypeError("the gateway has no log")
        try:
            url = await _address(process.stderr)
            reading = spawn(_pass_on(process.stderr), "log of the gateway")
            yield Client(url=url, key=None, state_dir=Path(directory))
            reading.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _address(log: asyncio.StreamReader) -> str:
    """Return the address that the log names. The rest of the log is passed on to standard error."""
    while line := await log.readline():
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = {}
        if record.get("event") == "the gateway listens":
            return str(record["url"])
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
    raise _NotStarted("the gateway does not start; its log above says why")


async def _pass_on(log: asyncio.StreamReader) -> None:
    """Read the log, so that the gateway can write it. Only what is worse than information is passed on."""
    while line := await log.readline():
        if b'"level": "info"' not in line:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()


class _NoMessage(Exception):
    """What was answered is no message of JSON-RPC, so that no gateway has answered, but perhaps a proxy."""


class _Bridge:
    """Sends messages from standard input to the gateway, and writes the answers."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        #: headers of a legacy client, which `initialize` has negotiated
        self._negotiated: dict[str, str] = {}
        #: the messages that wait for their answers, by id
        self._waiting: dict[str | int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the end of the input, then wait for no answer any more."""
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            if not line.strip():
                continue
            try:
                message = exact_json.loads(line)
            except orjson.JSONDecodeError:
                message = None
            if not isinstance(message, dict):
                self._refuse(None, -32700, "a line must be one JSON object")
                continue
            await self._take(message)
        for task in list(self._waiting.values()):
            task.cancel()

    async def _take(self, message: Json) -> None:
        params = message.get("params")
        if message.get("method") == "notifications/cancelled" and isinstance(params, dict):
            if not self._is_modern(message) and self._negotiated:
                await self._send(message)
            elif (task := self._waiting.get(params.get("requestId", ""))) is not None:
                task.cancel()  # closing its stream cancels it
            return
        number = message.get("id")
        if message.get("method") == "initialize" or not isinstance(number, str | int) or "method" not in message:
            await self._send(message)  # in order: later messages need what it negotiates
            return
        self._waiting[number] = task = spawn(self._send(message), "message to the gateway")
        task.add_done_callback(lambda _task: self._waiting.pop(number, None))

    async def _send(self, message: Json) -> None:
        number = message.get("id")
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._send_once(message)
            except httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    self._refuse(number, INTERNAL, f"the gateway at {self._url} does not answer: {error!r}")
                await asyncio.sleep(PAUSE * attempt)
            except _NoMessage:
                self._refuse(number, INTERNAL, f"the answer of {self._url} is not a gateway's")
                return
            else:
                return

    async def _send_once(self, message: Json) -> None:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= self._headers_of(message)
        body = exact_json.dumps(message)
        async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
            if message.get("method") == "initialize" and _SESSION in response.headers:
                self._negotiated[_SESSION] = response.headers[_SESSION]
            if response.headers.get("Content-Type", "").startswith("text/event-stream"):
                answered = False
                async for line in lines_of(response.aiter_bytes()):  # the client's own lines also end at U+2028
                    if line.startswith(b"data: "):
                        told = _message(line.removeprefix(b"data: "))
                        answered = answered or told.get("id") == message.get("id")
                        self._write(told)
                if not answered:
                    raise httpx.RemoteProtocolError("the stream broke before the answer")
                return
            content = await response.aread()
        if not content:
            return
        told = _message(content)
        if message.get("id") is not None or "method" in message:
            if message.get("method") == "initialize" and "result" in told:
                self._negotiated[_VERSION] = told["result"]["protocolVersion"]
            self._write(told if told.get("id") is not None else told | {"id": message.get("id")})

    @staticmethod
    def _is_modern(message: Json) -> bool:
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        return isinstance(meta, dict) and f"{_META}protocolVersion" in meta

    def _headers_of(self, message: Json) -> dict[str, str]:
        if not self._is_modern(message):
            return self._negotiated
        params: Json = message["params"]
        headers = {_VERSION: params["_meta"][f"{_META}protocolVersion"], "Mcp-Method": message.get("method")}
        if message.get("method") == "tools/call":
            headers["Mcp-Name"] = params.get("name")
            arguments = params.get("arguments")
            headers["Mcp-Param-Session"] = arguments.get("session") if isinstance(arguments, dict) else None
        return {name: _header_value(value) for name, value in headers.items() if isinstance(value, str)}

    def _refuse(self, number: object, code: int, text: str) -> None:
        self._write({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}})

    @staticmethod
    def _write(message: Json) -> None:
        sys.stdout.buffer.write(exact_json.dumps(message) + b"\n")
        sys.stdout.flush()


def _message(content: bytes) -> Json:
    """Return what the gateway has answered.

    Raises:
        _NoMessage: when it is no JSON object.
    """
    try:
        told = exact_json.loads(content)
    except orjson.JSONDecodeError as error:
        raise _NoMessage from error
    if not isinstance(told, dict):
        raise _NoMessage
    return told


def _header_value(value: str) -> str:
    """Return a value as headers of MCP hold it: as base64 if it is more than printable ASCII."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="
