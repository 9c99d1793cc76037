"""`kernel-gateway run`: run one cell in a session of a running gateway."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from getpass import getpass
from pathlib import Path
from typing import Any

import httpx

from kernel_gateway.cli.client_command import (
    STANDARD_INPUT,
    add_code,
    add_examples,
    add_session,
    code_of,
    forget_output,
    print_json,
    problem,
)
from kernel_gateway.cli.flags import client_from
from kernel_gateway.cli.pictures import Pictures, TerminalPictures
from kernel_gateway.cli.remote import Failed, Remote, path_of, told
from kernel_gateway.client import ClientError, GatewayError, Result, Session
from kernel_gateway.client_config import Client, picture_protocol
from kernel_gateway.http.readable_text import readable_text
from kernel_gateway.http.terminal_text import without_escapes

#: exit code of the command by the cell's status
EXIT = {"ok": 0, "error": 1, "timeout": 3, "interrupted": 4, "died": 5}
#: exit code when the cell runs on without the gateway, or its end is not known, by the error's code
UNKNOWN = {"SB030": 6, "SB048": 6}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    file = "a file with the code, or a notebook (.ipynb), whose cells run in order until one fails"
    add_code(parser, file=f"{file}; - or none: standard input", default=STANDARD_INPUT)
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
        2 not accepted, 3 timeout, 4 interrupted, 5 died, 6 runs on without the gateway, or its end is not known.
    """
    client = client_from(arguments)
    try:
        cells = _cells(arguments)
        pictures = _pictures(arguments)
    except (OSError, ValueError) as error:
        print(f"kernel-gateway: {problem(error)}", file=sys.stderr)
        return 2
    try:
        return EXIT[_run_all(client, arguments, cells, pictures)]
    except BrokenPipeError:  # whoever reads the outputs has seen enough, as in `| head`
        forget_output()
        return EXIT["interrupted"]
    except GatewayError as refusal:
        print(f"kernel-gateway: {told(refusal)}", file=sys.stderr)
        return UNKNOWN.get(refusal.code, 2)
    except (Failed, ClientError) as failure:
        print(f"kernel-gateway: {failure}", file=sys.stderr)
        return 2


def _pictures(arguments: argparse.Namespace) -> Pictures | TerminalPictures | None:
    """Return what takes rich outputs. None: their types are named, and that is all."""
    if arguments.save is not None:
        return Pictures(arguments.save)
    return TerminalPictures(picture_protocol()) if sys.stdout.isatty() else None


def _run_all(
    client: Client, arguments: argparse.Namespace, cells: list[str], pictures: Pictures | TerminalPictures | None
) -> str:
    """Run cells until one fails, and return the status of the last one."""
    status = "ok"
    if arguments.detach:  # the statuses of the cells themselves are not known yet
        fields = {} if arguments.timeout is None else {"timeout": arguments.timeout}
        for code in cells:
            body = {"code": code, "wait": False} | fields
            print(Remote(client).json("POST", f"{path_of(arguments.session)}/execute", body)["id"])
        return status
    with session_of(client, arguments.session) as session:
        for code in cells:
            if status != "ok":
                break
            status = show(session, code, arguments.timeout, pictures, json_only=arguments.json).status
    return status


@contextmanager
def session_of(client: Client, name: str) -> Iterator[Session]:
    """Return a session whose cells ask the user, and are interrupted also when this program is to end."""
    try:
        session = Session(client.url, client.credential(), name, input=answer)
    except (httpx.InvalidURL, ValueError) as error:
        raise Failed(f"no gateway at {client.url}: {error}") from None
    former = {}
    if threading.current_thread() is threading.main_thread():
        former = {each: signal.signal(each, _end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with session:
            yield session
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)  # as a shell shows a signal


def show(
    session: Session,
    code: str,
    timeout: float | None,
    pictures: Pictures | TerminalPictures | None,
    *,
    json_only: bool = False,
) -> Result:
    """Run a cell and print its outputs as they arrive; with `json_only`, nothing but the whole reply at its end.

    Raises:
        ClientError: when the gateway did not run the cell, or is gone.
        BrokenPipeError: when nobody reads the outputs any more.
    """
    with closing(session.stream(code, timeout=timeout)) as events:  # its end interrupts the cell, if it still runs
        for event in events:
            if event.result is not None:
                if json_only:
                    print_json(event.fields | {"outputs": event.result.outputs})
                else:
                    print_end(event.result, event.fields.get("outputs", []), pictures)
                return event.result
            if json_only:
                continue
            match event.type:
                case "output":
                    _show_output(event.fields["output"], pictures, event.fields.get("display_id"))
                case "update_display_data":
                    _save(pictures, event.fields["data"], event.fields["display_id"])
    raise RuntimeError("a stream has ended without a result")


def answer(prompt: str, hidden: bool) -> str | None:  # noqa: FBT001 - the library passes both by position
    """Ask the user; None: the end of the input.

    Raises:
        Failed: when the answer cannot be read.
    """
    try:
        text = (getpass if hidden else input)(prompt)
        text.encode()  # Python may read bytes that are no text as surrogates
    except EOFError:
        return None
    except (OSError, ValueError, RuntimeError) as error:  # no UTF-8, a closed input, or none at all
        raise Failed(f"the answer to input() cannot be read: {error}") from None
    return text


def _cells(arguments: argparse.Namespace) -> list[str]:
    """Return the code of each cell: of a notebook those that nbclient would run, else only one.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when the code is no text, or the notebook is none.
    """
    code = code_of(arguments) or ""
    if arguments.code is not None or arguments.file.suffix != ".ipynb":
        return [code]
    try:
        cells = [cell for cell in json.loads(code)["cells"] if cell["cell_type"] == "code"]
        kept = [cell for cell in cells if "skip-execution" not in cell["metadata"].get("tags", ())]
        return [source for cell in kept if (source := "".join(cell["source"])).strip()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{arguments.file} is no notebook of nbformat 4: {error}") from error


def _show_output(output: dict[str, Any], pictures: Pictures | TerminalPictures | None, display_id: str | None) -> None:
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


def _save(pictures: Pictures | TerminalPictures | None, data: dict[str, Any] | None, display_id: str | None) -> None:
    if pictures is None or data is None:
        return
    try:
        paths = pictures.save(data, display_id)
    except OSError as error:  # the cell goes on
        print(f"kernel-gateway: {problem(error)}", file=sys.stderr)
        return
    for path in paths:
        print(path)


def print_end(result: Result, outputs: list[dict[str, Any]], pictures: Pictures | TerminalPictures | None) -> None:
    """Print what the result adds to the events before it. It has all outputs if some could not be sent one by one."""
    notes = []
    if outputs:
        print("kernel-gateway: some outputs were not shown in time; these are all of them:", file=sys.stderr)
        for output in outputs:
            _show_output(output, pictures, None)
    if result.error:
        notes.append(told(result.error))
    if result.state in {"restarted", "rolled_back", "lost"}:
        notes.append(f"state {result.state}: {result.state_reason}")
    if result.truncated:
        notes.append(f"some output was left out ({result.omitted_bytes:,} bytes)")
    for note in notes:
        print(f"kernel-gateway: {note}", file=sys.stderr)
