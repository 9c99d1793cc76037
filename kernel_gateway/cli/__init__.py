"""The commands of `kernel-gateway`: one module for each, listed in one table.

Nothing imports this room but the entry point, `__main__.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from sessions.model.errors import InvalidRequest

#: To add a command: its line, and a module of its name with `add_arguments(parser)` and `main(arguments) -> exit code`.
COMMANDS = {
    "serve": "run the gateway",
    "doctor": "say what is missing on this machine for isolated kernels, and how to fix it",
    "keys": "make, list and revoke keys; a change takes effect at once",
    "tenants": "list the tenants of a running gateway, change the limits of one, or remove one",
    "audit": "print who ran what as JSON lines, and check that no record was changed",
    "usage": "print what each tenant has used within a period: cells, time, output, memory and disk",
    "run": "run code in a session of a running gateway; the session is made on first use",
    "console": "an interactive prompt in a session, with history, completion, and Ctrl-C for the running cell",
    "debug": "run code under the debugger, with the commands of pdb, or look at the exception that has ended a cell",
    "executions": "list, show and end executions that run without their client, as after `run --detach`",
    "sessions": "list your sessions; an admin: those of all tenants",
    "create": "make a session, for example in another language",
    "end": "end a session, with its variables and files",
    "interrupt": "interrupt the running cell of a session; the variables stay",
    "restart": "start a fresh kernel in a session; the files stay",
    "files": "list, fetch, send and delete files of a session",
    "variables": "list the variables of a session, or show one; also while a cell runs",
    "notebook": "export all cells of a session as a notebook",
    "replay": "run the cells of a session or a notebook again in a fresh session, and compare their outputs",
    "checkpoint": "take a checkpoint of a session, list its checkpoints, or delete one",
    "rollback": "return a session to a checkpoint: variables and files are as they were",
    "branch": "make a session that begins with the variables and files of another",
    "mcp": "speak the Model Context Protocol on standard input and output, for programs that start such a server",
    "languages": "list the languages that sessions can have",
    "completion": "print a script with which Bash or zsh completes commands and flags",
    "exec-json": "run one program with the active provider: a JSON object on standard input, one on standard output",
}


class _Version(argparse.Action):
    """Prints the version. It is looked up only then, because that takes a third of a command's start."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_values: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - as above

        print(parser.prog, version("sandboxed-kernel-gateway"))
        parser.exit()


def module_of(command: str) -> ModuleType:
    """Import the command's module. Other commands are not imported, because importing the service is slow."""
    return import_module(f"{__name__}.{command.replace('-', '_')}")


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the arguments of one command."""
    top = argparse.ArgumentParser(
        prog="kernel-gateway",
        description="Stateful code execution: one Jupyter kernel per session, each in its own gVisor container.",
        epilog="`kernel-gateway COMMAND --help` shows the arguments of a command, and examples.",
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == chosen:
            module = module_of(name)
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    return top


def _parsed(argv: list[str]) -> argparse.Namespace:
    """Parse a command line. The message about the former flag of a setting names the present flag."""
    top = parser(argv[0] if argv else None)
    arguments, unknown = top.parse_known_args(argv)
    if unknown:
        from kernel_gateway.config import RENAMED  # noqa: PLC0415 - importing the settings is slow

        present = {f"--{old.replace('_', '-')}": f"--{new.replace('_', '-')}" for old, new in RENAMED.items()}
        flags = [word.partition("=")[0] for word in unknown]
        near = "".join(f"; did you mean {present[flag]}?" for flag in flags if flag in present)
        top.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        the exit code of the command; 2 when settings or arguments are not valid.
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parsed(argv)
    try:
        code = int(arguments.main(arguments))
        print(end="", flush=True)
    except InvalidRequest as error:
        for problem in error.message.splitlines():
            print(f"kernel-gateway: {problem} ({error.code})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        from kernel_gateway.cli.client_command import NOBODY_READS, forget_output  # noqa: PLC0415 - rare

        forget_output()
        return NOBODY_READS
    return code
