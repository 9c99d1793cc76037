"""`kernel-gateway variables`: list the variables of a session, or show one of them."""

from __future__ import annotations

import argparse
from typing import Any

from kernel_gateway.cli.client_command import (
    add_examples,
    add_session,
    client_command,
    print_json,
    print_list,
    print_table,
)
from kernel_gateway.cli.remote import Remote, path_of
from kernel_gateway.client.gateway import quoted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this variable with the beginning of its content")
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_session(parser)
    add_examples(parser, "kernel-gateway variables -s demo", "kernel-gateway variables -s demo df")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Print a line for each variable: name, type, size, and the beginning of its value; or one with its content."""
    path = f"{path_of(arguments.session)}/variables"
    if arguments.name is None:
        reply = remote.json("GET", path)
        print_list(reply, map(_row, reply["variables"]), json=arguments.json)
        return
    reply = remote.json("GET", f"{path}/{quoted(arguments.name)}")
    if arguments.json:
        print_json(reply)
        return
    print(*_row(reply), sep="  ")
    if columns := reply.get("columns"):
        rows = [[column["name"] for column in columns], *reply["rows"]]
        print_table([tuple(map(shown, row)) for row in rows])
    print_table(map(_row, reply.get("entries", ())))


def _row(variable: dict[str, Any]) -> tuple[str, ...]:
    size = variable.get("shape", variable.get("length", ""))
    sizes = " × ".join(map(str, size)) if isinstance(size, list) else str(size)  # noqa: RUF001 - the sign of a product
    return (*map(shown, (variable["name"], variable["type"])), sizes, shown(variable["preview"]))


def shown(text: str) -> str:
    """Return a text of the kernel without characters that move the cursor or change the terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
