"""`kernel-gateway run`: run one cell in a session of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import threading
from getpass import getpass
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import orjson
from tornado.httpclient import HTTPError, HTTPRequest
from tornado.websocket import WebSocketError, websocket_connect

from kernel_gateway.cli.client_command import add_examples, add_session, forget_output, print_json
from kernel_gateway.cli.pictures import Pictures
from kernel_gateway.cli.remote import Failed, Remote, absent, path_of, refusal_in, told
from kernel_gateway.cli.settings import client_from
from kernel_gateway.config import Client
from kernel_gateway.http.readable_text import readable_text
from kernel_gateway.http.terminal_text import without_escapes
from sessions.model import exact_json

#: bytes of one event; a single output may be as large as all output of a cell
MESSAGE_MAX = 1024**3
#: exit code of the command by the cell's status
EXIT = {"ok": 0, "error": 1, "timeout": 3, "interrupted": 4, "died": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="a file with the code, or a notebook (.ipynb), whose cells run in order until one fails; "
        "- or none: standard input",
    )
    parser.add_argument("-c", "--code", help="code, instead of a file")
    parser.add_argument("-t", "--timeout", type=float, help="seconds the cell may run")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the reply as JSON")
    form.add_argument(
        "--detach",
        action="store_true",
        help="do not wait: print the execution's id, for `kernel-gateway executions show ID`",
    )
    form.add_argument(
        "--save",
        type=Path,
        metavar="DIRECTORY",
        help="write plots, tables and the like as files; the names are printed",
    )
    add_session(parser)
    add_examples(
        parser,
        "kernel-gateway run -s demo -c 'x = 40 + 2; x'",
        "kernel-gateway run -s demo -t 600 train.py",
        "kernel-gateway run -s demo --detach train.py",
        "kernel-gateway run -s demo analysis.ipynb",
        "kernel-gateway run -s demo --save plots -c 'df.plot()'",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run one cell, or those of a notebook, and print their outputs as they arrive.

    Returns:
        0 when all cells succeeded, or the cell was accepted with `--detach`; of the one that did not: 1 error,
        2 not accepted, 3 timeout, 4 interrupted, 5 died.
    """
    client = client_from(arguments)
    try:
        cells = _cells(arguments)
        # A user who ends this command with Ctrl-C wants to interrupt the cell.
        rest: dict[str, Any] = {"wait": False} if arguments.detach else {"on_disconnect": "interrupt"}
        rest |= {} if arguments.timeout is None else {"timeout": arguments.timeout}
        pictures = None if arguments.save is None else Pictures(arguments.save)
    except (OSError, ValueError) as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 2
    try:
        status = "ok"
        for code in cells:
            if status == "ok":
                status = _run(client, arguments, rest | {"code": code}, pictures)
    except BrokenPipeError:  # whoever reads the outputs has seen enough, as in `| head`
        forget_output()
        return EXIT["interrupted"]
    except Failed as failure:
        print(f"kernel-gateway: {failure}", file=sys.stderr)
        return 2
    except (HTTPError, OSError) as error:
        print(f"kernel-gateway: {absent(client.url, error)}", file=sys.stderr)
        return 2
    return EXIT[status]


def _run(client: Client, arguments: argparse.Namespace, body: dict[str, Any], pictures: Pictures | None) -> str:
    """Run one cell, print its outputs or the reply, and return its status. With `--detach`, only print its id."""
    path = f"{path_of(arguments.session)}/execute"
    if arguments.detach:
        print(Remote(client).json("POST", path, body)["id"])
        return "ok"  # of the command: the cell's own is not known yet
    if arguments.json:
        result = Remote(client).json("POST", path, body)
        print_json(result)
    else:
        result = asyncio.run(_show(client, arguments.session, body, pictures))
        _print_end(result, pictures)
    return str(result["status"])


def _cells(arguments: argparse.Namespace) -> list[str]:
    """Return the code of each cell: of a notebook those that nbclient would run, else only one.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when the code is no text, or the notebook is none.
    """
    try:
        code = _code(arguments)
    except UnicodeError as error:
        raise ValueError(f"{arguments.file or 'the code'}: {error}") from error
    if arguments.code is not None or arguments.file is None or arguments.file.suffix != ".ipynb":
        return [code]
    try:
        cells = [cell for cell in json.loads(code)["cells"] if cell["cell_type"] == "code"]
        kept = [cell for cell in cells if "skip-execution" not in cell["metadata"].get("tags", ())]
        return [source for cell in kept if (source := "".join(cell["source"])).strip()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{arguments.file} is no notebook of nbformat 4: {error}") from error


def _code(arguments: argparse.Namespace) -> str:
    if arguments.code is not None:
        code = str(arguments.code)
    elif arguments.file is None or str(arguments.file) == "-":
        code = sys.stdin.read()
    else:
        code = str(arguments.file.read_text())
    code.encode()  # Python may read bytes that are no text as surrogates
    return code


async def _show(client: Client, session: str, body: dict[str, Any], pictures: Pictures | None) -> dict[str, Any]:
    """Execute a cell, print its outputs as they arrive, and pass on the answers to its `input()`.

    Args:
        client: where the gateway is.
        session: name of the session.
        body: the cell.
        pictures: what writes rich outputs as files; None: nothing does.

    Returns:
        the last event.

    Raises:
        Failed: when the gateway did not run the cell, or closed the connection before the cell's end.
        HTTPError: when the server is no gateway.
        OSError: when nobody reads the outputs any more.
    """
    logging.getLogger("tornado").addHandler(logging.NullHandler())  # it would print a failed handshake a second time
    address = f"{client.url.replace('http', 'ws', 1)}{path_of(session)}/stream"
    headers = {"Authorization": f"Bearer {client.credential()}"}
    request = HTTPRequest(address, headers=headers, request_timeout=0)
    try:
        socket = await websocket_connect(request, max_message_size=MESSAGE_MAX)
    except HTTPError as error:
        raise (refusal_in(error.response.body if error.response else b"") or error) from None
    except WebSocketError as error:
        raise HTTPError(HTTPStatus.OK, str(error)) from None
    closed = False
    try:
        await socket.write_message(orjson.dumps(body))
        while (message := await socket.read_message()) is not None:
            event = _event(message)
            match event.get("type"):
                case "output":
                    _show_output(event["output"], pictures, event.get("display_id"))
                case "update_display_data":
                    _save(pictures, event["data"], event["display_id"])
                case "input_request":
                    await socket.write_message(orjson.dumps({"input": await _answer(event)}))
                case "error":
                    raise Failed(told(event["error"]))
                case "result":
                    return event
        closed = True
        why = f": {socket.close_reason}" if socket.close_reason else ""
        raise Failed(f"the connection to {client.url} ended before the cell did{why}")
    finally:
        socket.close()
        while not closed and await socket.read_message() is not None:
            pass  # until the gateway has closed it, too


async def _answer(question: dict[str, Any]) -> str | None:
    """Ask the user; None: the end of the input.

    A thread waits for the answer, and the command may end meanwhile.

    Raises:
        Failed: when the answer cannot be read.
    """
    loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def ask() -> None:
        try:
            text = (getpass if question["password"] else input)(question["prompt"])
            text.encode()  # Python may read bytes that are no text as surrogates
        except EOFError:
            text = None
        except (OSError, ValueError, RuntimeError) as error:  # no UTF-8, a closed input, or none at all
            failed = Failed(f"the answer to input() cannot be read: {error}")
            loop.call_soon_threadsafe(answer.set_exception, failed)
            return
        loop.call_soon_threadsafe(answer.set_result, text)

    threading.Thread(target=ask, daemon=True).start()
    return cast("str | None", await answer)


def _event(line: str | bytes) -> dict[str, Any]:
    """Parse one JSON object; a server that is no gateway may send anything."""
    try:
        event = exact_json.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _show_output(output: dict[str, Any], pictures: Pictures | None, display_id: str | None) -> None:
    show_output(output)
    _save(pictures, output.get("data"), display_id)


def show_output(output: dict[str, Any]) -> None:
    """Print an output as text."""
    match output["output_type"]:
        case "stream":
            print(output["text"], end="", file=sys.stderr if output["name"] == "stderr" else sys.stdout, flush=True)
        case "error":
            text = "\n".join(output["traceback"])
            print(text if sys.stderr.isatty() else without_escapes(text), file=sys.stderr)
        case _:
            readable = readable_text(output["data"])
            others = [f"[{mime}]" for mime in output["data"] if mime != "text/plain"]
            print(*([] if readable is None else [readable]), *others)


def _save(pictures: Pictures | None, data: dict[str, Any] | None, display_id: str | None) -> None:
    if pictures is None or data is None:
        return
    try:
        paths = pictures.save(data, display_id)
    except OSError as error:  # the cell goes on
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return
    for path in paths:
        print(path)


def _print_end(result: dict[str, Any], pictures: Pictures | None) -> None:
    """Print what the last event adds to those before it. It has all outputs if some could not be sent one by one."""
    notes = []
    if outputs := result.get("outputs"):
        print("kernel-gateway: some outputs were not shown in time; these are all of them:", file=sys.stderr)
        for output in outputs:
            _show_output(output, pictures, None)
    if result["error"]:
        notes.append(told(result["error"]))
    if result["state"] in {"restarted", "rolled_back", "lost"}:
        notes.append(f"state {result['state']}: {result['state_reason']}")
    if result["truncated"]:
        notes.append(f"some output was left out ({result['omitted_bytes']:,} bytes)")
    for note in notes:
        print(f"kernel-gateway: {note}", file=sys.stderr)
