"""`kernel-gateway sessions`: list the sessions of the key's tenant."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_gateway, client_command, print_list
from kernel_gateway.cli.remote import Remote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="print all that is known about them, as JSON")
    add_gateway(parser)
    add_examples(parser, "kernel-gateway sessions", "kernel-gateway sessions --json")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Print a line for each session: name, language, state, and when it was last used (UTC)."""
    reply = remote.json("GET", "/v1/sessions")
    rows = (
        (each["name"], each["language"], each["state"], each["last_activity"][:16].replace("T", " "))
        for each in reply["sessions"]
    )
    print_list(reply, rows, json=arguments.json)
