"""`kernel-gateway run`: run one cell in a session of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from getpass import getpass
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import orjson
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest
from tornado.websocket import WebSocketError, websocket_connect

from kernel_gateway.cli.settings import add_location, client_from
from kernel_gateway.config import Client
from kernel_gateway.http.terminal_text import without_escapes
from sessions.model import exact_json

#: bytes of one event; a single output may be as large as all output of a cell
MESSAGE_MAX = 1024**3
#: exit code of the command by the cell's status
EXIT = {"ok": 0, "error": 1, "timeout": 3, "interrupted": 4, "died": 5}


class Refused(Exception):
    """The gateway did not run the cell, or the cell cannot go on; the text is the reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="a file with the code; - or none: standard input"
    )
    parser.add_argument("-c", "--code", help="code, instead of a file")
    parser.add_argument("-s", "--session", default="cli", help="the session's name (default: %(default)s)")
    parser.add_argument("-t", "--timeout", type=float, help="seconds the cell may run")
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_location(parser)
    parser.add_argument("--url", help="the gateway (default: http://127.0.0.1:8888) [KERNEL_GATEWAY_URL]")
    parser.add_argument("--key", help="a tenant's key (default: the one in the state directory) [KERNEL_GATEWAY_KEY]")


def main(arguments: argparse.Namespace) -> int:
    """Run one cell and print its outputs as they arrive.

    Returns:
        0 when the cell succeeded; 1 error, 2 not accepted, 3 timeout, 4 interrupted, 5 died.
    """
    client = client_from(arguments)
    try:
        # A user who ends this command with Ctrl-C wants to interrupt the cell.
        body = {"code": _code(arguments), "on_disconnect": "interrupt"}
        body |= {} if arguments.timeout is None else {"timeout": arguments.timeout}
    except (OSError, UnicodeDecodeError) as error:
        print(f"kernel-gateway: {arguments.file}: {error}", file=sys.stderr)
        return 2
    try:
        result = asyncio.run((_reply if arguments.json else _show)(client, arguments.session, body))
    except Refused as refusal:
        print(f"kernel-gateway: {refusal}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads the outputs has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's end would fail, too
        return EXIT["interrupted"]
    except (HTTPError, OSError) as error:
        print(f"kernel-gateway: no gateway at {client.url}: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        _print_end(result)
    return EXIT[result["status"]]


def _code(arguments: argparse.Namespace) -> str:
    if arguments.code is not None:
        return str(arguments.code)
    if arguments.file is None or str(arguments.file) == "-":
        return sys.stdin.read()
    return str(arguments.file.read_text())


async def _reply(client: Client, session: str, body: dict[str, Any]) -> dict[str, Any]:
    """Execute a cell and return the reply.

    Raises:
        Refused: when the gateway did not run the cell.
        HTTPError: when the server is no gateway.
    """
    request = HTTPRequest(
        f"{_address(client, session)}/execute",
        method="POST",
        headers=_headers(client) | {"Content-Type": "application/json"},
        body=orjson.dumps(body),
        request_timeout=0,
    )
    try:
        response = await AsyncHTTPClient(force_instance=True).fetch(request)
    except HTTPError as error:
        raise _refusal(error) from None
    reply = _event(response.body)
    if "status" not in reply:
        raise HTTPError(response.code, "the answer is not a gateway's")
    return reply


async def _show(client: Client, session: str, body: dict[str, Any]) -> dict[str, Any]:
    """Execute a cell, print its outputs as they arrive, and pass on the answers to its `input()`.

    Returns:
        the last event.

    Raises:
        Refused: when the gateway did not run the cell.
        HTTPError: when the server is no gateway, or ended in the middle of the answer.
        OSError: when nobody reads the outputs any more.
    """
    address = _address(client, session).replace("http", "ws", 1)
    request = HTTPRequest(f"{address}/stream", headers=_headers(client), request_timeout=0)
    try:
        socket = await websocket_connect(request, max_message_size=MESSAGE_MAX)
    except HTTPError as error:
        raise _refusal(error) from None
    except WebSocketError as error:
        raise HTTPError(HTTPStatus.OK, str(error)) from None
    try:
        await socket.write_message(orjson.dumps(body))
        while (message := await socket.read_message()) is not None:
            event = _event(message)
            match event.get("type"):
                case "output":
                    _print_output(event["output"])
                case "input_request":
                    await socket.write_message(orjson.dumps({"input": await _answer(event)}))
                case "error":
                    raise Refused(_reason(event["error"]))
                case "result":
                    return event
    finally:
        socket.close()
        while await socket.read_message() is not None:
            pass  # until the gateway has closed it, too
    raise HTTPError(599, "the connection was closed before the cell's end")


async def _answer(question: dict[str, Any]) -> str | None:
    """Ask the user; None: the end of the input.

    A thread waits for the answer, and the command may end meanwhile.

    Raises:
        Refused: when the answer cannot be read.
    """
    loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def ask() -> None:
        try:
            text = (getpass if question["password"] else input)(question["prompt"])
            text.encode()  # Python may read bytes that are no text as surrogates
        except EOFError:
            text = None
        except (OSError, ValueError, RuntimeError) as error:  # no UTF-8, a closed input, or none at all
            refused = Refused(f"the answer to input() cannot be read: {error}")
            loop.call_soon_threadsafe(answer.set_exception, refused)
            return
        loop.call_soon_threadsafe(answer.set_result, text)

    threading.Thread(target=ask, daemon=True).start()
    return cast("str | None", await answer)


def _address(client: Client, session: str) -> str:
    return f"{client.url}/v1/sessions/{quote(session, safe='')}"


def _headers(client: Client) -> dict[str, str]:
    return {"Authorization": f"Bearer {client.credential()}"}


def _event(line: str | bytes) -> dict[str, Any]:
    """Parse one JSON object; a server that is no gateway may send anything."""
    try:
        event = exact_json.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _print_output(output: dict[str, Any]) -> None:
    match output["output_type"]:
        case "stream":
            print(output["text"], end="", file=sys.stderr if output["name"] == "stderr" else sys.stdout, flush=True)
        case "error":
            text = "\n".join(output["traceback"])
            print(text if sys.stderr.isatty() else without_escapes(text), file=sys.stderr)
        case _:
            others = [mime for mime in output["data"] if mime != "text/plain"]
            print(output["data"].get("text/plain", ""), *(f"[{mime}]" for mime in others))


def _print_end(result: dict[str, Any]) -> None:
    notes = []
    if result["error"]:
        notes.append(f"{result['error']['code']}: {result['error']['message']}")
    if result["state"] in {"restarted", "rolled_back", "lost"}:
        notes.append(f"state {result['state']}: {result['state_reason']}")
    if result["truncated"]:
        notes.append("some output was left out")
    for note in notes:
        print(f"kernel-gateway: {note}", file=sys.stderr)


def _refusal(error: HTTPError) -> Exception:
    """Return the gateway's reason as `Refused`, or the error itself when the server is no gateway."""
    try:
        return Refused(_reason(orjson.loads(error.response.body if error.response else b"")["error"]))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return error


def _reason(failure: dict[str, Any]) -> str:
    return f"{failure['code']}: {failure['message']} - {failure['resolution']}"
