"""`kernel-gateway console`: an interactive prompt in a session, with history and completion."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_gateway.cli.client_command import add_examples, add_session
from kernel_gateway.cli.flags import client_from
from kernel_gateway.cli.pictures import Pictures, TerminalPictures
from kernel_gateway.cli.remote import Failed, told
from kernel_gateway.cli.run import session_of, show
from kernel_gateway.client import ClientError, GatewayError, Session
from kernel_gateway.client_config import picture_protocol

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession


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
    from kernel_gateway.cli.prompt import prompt_of  # noqa: PLC0415 - `--help` need not wait for it

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
