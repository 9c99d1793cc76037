"""The commands of `kernel-gateway`; each module here is one of them, in one table."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from pydantic import ValidationError

from kernel_gateway.cli import doctor, run, serve

#: To add a command: a module with `NAME`, `HELP`, `add_arguments(parser)` and `main(arguments) -> exit code`.
COMMANDS = (serve, doctor, run)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="kernel-gateway",
        description="Stateful code execution: one Jupyter kernel per session, each in its own gVisor container.",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {version('sandboxed-kernel-gateway')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        its exit code; 2 when settings or arguments are not valid.
    """
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.main(arguments))
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            where = ".".join(map(str, problem["loc"]))
            print(f"kernel-gateway: {where or 'settings'}: {problem['msg']} (SB002)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
