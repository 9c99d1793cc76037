"""`kernel-gateway run`: run one cell in a session of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from kernel_gateway.config import Client

#: exit code of the command by the cell's status
EXIT = {"ok": 0, "error": 1, "timeout": 3, "interrupted": 4, "died": 5}


class Refused(Exception):
    """The gateway did not run the cell; the text is its reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="a file with the code; - or none: standard input"
    )
    parser.add_argument("-c", "--code", help="code, instead of a file")
    parser.add_argument("-s", "--session", default="cli", help="the session's name (default: %(default)s)")
    parser.add_argument("-t", "--timeout", type=float, help="seconds the cell may run")
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")
    parser.add_argument("--url", help="the gateway (default: http://127.0.0.1:8888) [KERNEL_GATEWAY_URL]")
    parser.add_argument("--key", help="a tenant's key (default: the one in the state directory) [KERNEL_GATEWAY_KEY]")


def main(arguments: argparse.Namespace) -> int:
    """Run one cell and print its outputs as they arrive.

    Returns:
        0 when the cell succeeded; 1 error, 2 not accepted, 3 timeout, 4 interrupted, 5 died.
    """
    client = Client(**{name: value for name in ("url", "key") if (value := getattr(arguments, name)) is not None})
    try:
        # A user who ends this command with Ctrl-C wants to interrupt the cell.
        body = {"code": _code(arguments), "on_disconnect": "interrupt"}
        body |= {} if arguments.timeout is None else {"timeout": arguments.timeout}
    except (OSError, UnicodeDecodeError) as error:
        print(f"kernel-gateway: {arguments.file}: {error}", file=sys.stderr)
        return 2
    try:
        result = asyncio.run(_execute(client, arguments.session, body, show=not arguments.json))
    except Refused as refusal:
        print(f"kernel-gateway: {refusal}", file=sys.stderr)
        return 2
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


async def _execute(client: Client, session: str, body: dict[str, Any], *, show: bool) -> dict[str, Any]:
    """Execute a cell; stream the outputs when they are shown.

    Returns:
        the reply, or the last event of the stream.

    Raises:
        Refused: when the gateway did not run the cell.
        HTTPError: when the server is no gateway, or ended in the middle of the answer.
    """
    last: dict[str, Any] = {}
    rest = b""
    accepted = understood = False

    def headed(line: str) -> None:
        nonlocal accepted
        accepted = accepted or line.startswith("HTTP/1.1 200 ")

    def received(chunk: bytes) -> None:
        nonlocal last, rest, understood
        rest += chunk
        if not accepted:
            return  # a failure's body is no stream of lines
        *lines, rest = rest.split(b"\n")
        for line in lines:
            last = _event(line)
            understood = last.get("type") == "result"
            if last.get("type") == "output" and "output" in last:
                _print_output(last["output"])

    request = HTTPRequest(
        f"{client.url}/v1/sessions/{quote(session, safe='')}/execute",
        method="POST",
        headers={
            "Authorization": f"Bearer {client.credential()}",
            "Content-Type": "application/json",
            "Accept": "application/x-ndjson" if show else "application/json",
        },
        body=orjson.dumps(body),
        request_timeout=0,
        header_callback=headed,
        streaming_callback=received if show else None,
    )
    response = await AsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)
    if not accepted:
        raise _refusal(response.code, response.reason, rest or response.body)
    if not show:
        last = _event(response.body)
        understood = "status" in last
    if not understood:
        raise HTTPError(response.code, "the answer is not a gateway's, or is incomplete")
    return last


def _event(line: bytes) -> dict[str, Any]:
    """Parse one JSON object; a server that is no gateway may send anything."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _print_output(output: dict[str, Any]) -> None:
    match output["output_type"]:
        case "stream":
            print(output["text"], end="", file=sys.stderr if output["name"] == "stderr" else sys.stdout, flush=True)
        case "error":
            print("\n".join(output["traceback"]), file=sys.stderr)
        case _:
            others = [mime for mime in output["data"] if mime != "text/plain"]
            print(output["data"].get("text/plain", ""), *(f"[{mime}]" for mime in others))


def _print_end(result: dict[str, Any]) -> None:
    notes = []
    if result["error"]:
        notes.append(f"{result['error']['code']}: {result['error']['message']}")
    if result["state"] != "preserved":
        notes.append(f"state {result['state']}: {result['state_reason']}")
    if result["truncated"]:
        notes.append("some output was left out")
    for note in notes:
        print(f"kernel-gateway: {note}", file=sys.stderr)


def _refusal(code: int, reason: str, body: bytes) -> Exception:
    """Return the gateway's reason as `Refused`, or an HTTPError when the server is no gateway."""
    try:
        failure = orjson.loads(body)["error"]
        return Refused(f"{failure['code']}: {failure['message']} - {failure['resolution']}")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return HTTPError(code, reason)
