"""What all commands that are clients of a running gateway have in common: flags, exit codes, and how they print."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path

from kernel_gateway.cli.flags import add_location, client_from
from kernel_gateway.cli.remote import Failed, Remote

#: exit code of a command whose output nobody reads any more, as in `| head`; shells show SIGPIPE so
NOBODY_READS = 141
#: FILE of a command line whose code comes from standard input
STANDARD_INPUT = Path("-")


def add_gateway(parser: argparse.ArgumentParser, *actions: argparse.ArgumentParser) -> None:
    """Add the flags that say where the gateway is and whose key is used; they may stand before and after an action."""
    for each in (parser, *actions):
        add_location(each)
        each.add_argument(
            "--url",
            default=argparse.SUPPRESS,
            help="the gateway (default: http://127.0.0.1:8888) [KERNEL_GATEWAY_URL]",
        )
        each.add_argument(
            "--key",
            default=argparse.SUPPRESS,
            help="a tenant's key (default: the one in the state directory) [KERNEL_GATEWAY_KEY]",
        )


def add_session(parser: argparse.ArgumentParser, *actions: argparse.ArgumentParser) -> None:
    """Add the flag that names the session, and the flags of `add_gateway`."""
    parser.set_defaults(session="cli")
    for each in (parser, *actions):
        each.add_argument(
            "-s", "--session", metavar="NAME", default=argparse.SUPPRESS, help="the session's name (default: cli)"
        )
    add_gateway(parser, *actions)


def add_code(parser: argparse.ArgumentParser, *, file: str, default: Path | None = None) -> None:
    """Add the arguments that give the code of a cell.

    Args:
        parser: the command's parser.
        file: help for the argument FILE.
        default: the file of a command line without FILE.
    """
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", default=default, help=file)
    parser.add_argument("-c", "--code", help="code, instead of a file")


def code_of(arguments: argparse.Namespace) -> str | None:
    """Return the code that the arguments of `add_code` give; the file `-` is standard input. None: they give none.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when the code is no text.
    """
    file: Path | None = arguments.file if arguments.code is None else None
    code: str | None = arguments.code
    try:
        if file is not None:
            code = sys.stdin.read() if file == STANDARD_INPUT else file.read_text()
        if code is not None:
            code.encode()  # Python may read bytes that are no text as surrogates
    except UnicodeError as error:
        name = "the code" if file in {None, STANDARD_INPUT} else file
        raise ValueError(f"{name}: {error}") from error
    return code


def add_examples(parser: argparse.ArgumentParser, *examples: str) -> None:
    """Show examples at the end of a command's help."""
    parser.epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def client_command(work: Callable[[argparse.Namespace, Remote], None]) -> Callable[[argparse.Namespace], int]:
    """Make a command's `main` of its work with a gateway.

    Returns:
        a function with the exit code as its result: 0 done; 1 the gateway refused it, did not answer, or a local file
        cannot be read or written: standard error says what and why; 141 nobody reads the output any more.
    """

    @wraps(work)
    def main(arguments: argparse.Namespace) -> int:
        try:
            work(arguments, Remote(client_from(arguments)))
            print(end="", flush=True)
        except BrokenPipeError:
            forget_output()
            return NOBODY_READS
        except (Failed, OSError) as error:
            print(f"kernel-gateway: {problem(error)}", file=sys.stderr)
            return 1
        return 0

    return main


def problem(error: Exception) -> str:
    """Return what an error says; of a local file its name and what is wrong with it, without the system's number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def forget_output() -> None:
    """Drop what is not printed yet, because nobody reads it; the interpreter's end would fail otherwise."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """Print a reply as it came."""
    print(json.dumps(value, indent=2))


def print_list(reply: object, rows: Iterable[tuple[str, ...]], *, json: bool) -> None:
    """Print a reply that is a list: as it came with `json`, else as rows of a table."""
    if json:
        print_json(reply)
    else:
        print_table(rows)


def print_table(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows with the columns below one another; the last column may have any width."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        print(*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1], sep="  ")
