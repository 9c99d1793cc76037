"""`kernel-gateway console`: an interactive prompt in a session, with history and completion."""

from __future__ import annotations

import argparse
import codeop
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory

from kernel_gateway.cli.client_command import add_examples, add_session
from kernel_gateway.cli.pictures import Pictures, TerminalPictures
from kernel_gateway.cli.remote import Failed, told
from kernel_gateway.cli.run import session_of, show
from kernel_gateway.cli.settings import client_from
from kernel_gateway.client import ClientError, GatewayError, Session
from kernel_gateway.config import Client, picture_protocol

#: prints the kernel's answer to a complete_request, as JSON
COMPLETE = (
    "print(__import__('json').dumps({{name: value for name, value in "
    "get_ipython().kernel.do_complete({code!r}, {position}).items() if name != 'metadata'}}))"
)
#: seconds that a completion may take
COMPLETE_TIMEOUT = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("-t", "--timeout", type=float, help="seconds each cell may run")
    parser.add_argument(
        "--save", type=Path, metavar="DIRECTORY", help="write plots, tables and the like as files, as `run --save`"
    )
    add_session(parser)
    add_examples(parser, "kernel-gateway console -s demo")


def main(arguments: argparse.Namespace) -> int:
    """Read cells and run them, until Ctrl-D. Ctrl-C interrupts the running cell.

    Returns:
        0 after Ctrl-D; 2 when no gateway answers, or it refuses the session.
    """
    client = client_from(arguments)
    pictures = TerminalPictures(picture_protocol()) if arguments.save is None else Pictures(arguments.save)
    try:
        with session_of(client, arguments.session) as session:
            session.run("", store_history=False)  # makes it, if there is none
            prompt = prompt_of(session if session.info()["language"] == "python" else None, client)
            while (code := _read(prompt)) is not None:
                _run(session, code, arguments.timeout, pictures)
    except (Failed, ClientError) as failure:
        print(f"kernel-gateway: {told(failure) if isinstance(failure, GatewayError) else failure}", file=sys.stderr)
        return 2
    return 0


def prompt_of(python: Session | None, client: Client) -> PromptSession[str]:
    """Return the prompt; for a session of Python it knows when a cell is complete, and completes names."""
    directory = client.state_dir.expanduser()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return PromptSession(
        history=FileHistory(directory / "console-history"),
        completer=None if python is None else KernelCompleter(python),
        complete_while_typing=False,
        complete_in_thread=True,
        multiline=Condition(lambda: python is not None and incomplete(get_app().current_buffer.text)),
    )


def _read(prompt: PromptSession[str]) -> str | None:
    """Return the next cell; None: the end, by Ctrl-D."""
    while True:
        try:
            if (code := prompt.prompt(">>> ", prompt_continuation="... ")).strip():
                return code
        except KeyboardInterrupt:  # the line is dropped, as in other prompts
            continue
        except EOFError:
            return None


def _run(session: Session, code: str, timeout: float | None, pictures: Pictures | TerminalPictures) -> None:
    """Run a cell; an error of it, or a refusal, ends only the cell."""
    try:
        show(session, code, timeout, pictures)
    except KeyboardInterrupt:
        print("\nkernel-gateway: the cell was interrupted; the variables stay", file=sys.stderr)
    except GatewayError as refusal:
        print(f"kernel-gateway: {told(refusal)}", file=sys.stderr)


def incomplete(code: str) -> bool:
    """Return whether Python code needs further lines. An empty line ends a block."""
    last = code.rpartition("\n")[2]
    if "\n" in code and not last.strip():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernel shows them when the code runs
            return codeop.compile_command(code, symbol="exec") is None or last[:1].isspace()
    except (SyntaxError, ValueError, OverflowError):  # the kernel says what is wrong; or it is a magic
        return False


class KernelCompleter(Completer):
    """Asks the kernel what may stand at the cursor."""

    def __init__(self, session: Session) -> None:
        """Take the session, which is idle while a line is written."""
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        """Yield what may stand at the cursor."""
        code = COMPLETE.format(code=document.text, position=document.cursor_position)
        try:
            answer = json.loads(self._session.run(code, store_history=False, timeout=COMPLETE_TIMEOUT).text)
            matches, begin = answer["matches"], answer["cursor_start"] - document.cursor_position
        except (ClientError, ValueError):  # a kernel that is asked in vain completes nothing
            return
        for match in matches:
            yield Completion(match, start_position=begin)
