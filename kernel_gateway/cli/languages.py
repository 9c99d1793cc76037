"""`kernel-gateway languages`: list the languages that sessions can have."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_gateway, client_command, print_list
from kernel_gateway.cli.remote import Remote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="print them as JSON, with all packages and their versions")
    add_gateway(parser)
    add_examples(parser, "kernel-gateway languages", "kernel-gateway languages --json")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Print a line for each language: name, version, number of packages, and its other names."""
    reply = remote.json("GET", "/v1/languages")
    rows = (
        (each["name"], each["version"], f"{len(each['packages'])} packages", " ".join(each["aliases"]))
        for each in reply["languages"]
    )
    print_list(reply, rows, json=arguments.json)
