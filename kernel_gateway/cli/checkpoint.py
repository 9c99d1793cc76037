"""`kernel-gateway checkpoint`: take a checkpoint of a session, list its checkpoints, or delete one."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from kernel_gateway.cli.client_command import add_examples, add_session, client_command, print_json, print_list
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("name", nargs="?", metavar="NAME", help="the checkpoint's name; without it the gateway makes one")
    what.add_argument("--list", action="store_true", help="take none, but list those that there are, oldest first")
    what.add_argument("--delete", metavar="NAME", help="take none, but delete this one")
    parser.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_session(parser)
    add_examples(
        parser,
        "kernel-gateway checkpoint -s demo loaded",
        "kernel-gateway checkpoint -s demo --list",
        "kernel-gateway checkpoint -s demo --delete loaded",
    )


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Take a checkpoint and print its name; print a line for each: name, time (UTC), bytes on disk; or delete one."""
    path = f"{path_of(arguments.session)}/checkpoints"
    if arguments.delete is not None:
        remote.json("DELETE", f"{path}/{quote(arguments.delete.encode(errors='surrogateescape'), safe='')}")
    elif arguments.list:
        reply = remote.json("GET", path)
        rows = (
            (each["name"], each["created_at"][:16].replace("T", " "), str(each["bytes"]))
            for each in reply["checkpoints"]
        )
        print_list(reply, rows, json=arguments.json)
    else:
        reply = remote.json("POST", path, {} if arguments.name is None else {"name": arguments.name})
        if arguments.json:
            print_json(reply)
        else:
            print(reply["name"])
