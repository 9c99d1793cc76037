"""`kernel-gateway checkpoint`: take a checkpoint of a session, or list its checkpoints."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command, print_json, print_table
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the checkpoint's name; without it the gateway makes one"
    )
    parser.add_argument("--list", action="store_true", help="take none, but list those that there are, oldest first")
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_session(parser)
    add_examples(parser, "kernel-gateway checkpoint -s demo loaded", "kernel-gateway checkpoint -s demo --list")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Take a checkpoint and print its name; or print a line for each: name, time (UTC), bytes on disk."""
    path = f"{path_of(arguments.session)}/checkpoints"
    if arguments.list:
        reply = remote.json("GET", path)
    else:
        reply = remote.json("POST", path, {} if arguments.name is None else {"name": arguments.name})
    if arguments.json:
        print_json(reply)
    elif arguments.list:
        print_table(
            (each["name"], each["created_at"][:16].replace("T", " "), str(each["bytes"]))
            for each in reply["checkpoints"]
        )
    else:
        print(reply["name"])
