"""`kernel-gateway branch`: make a session that begins as another one is, or was."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("name", metavar="NAME", help="name of the new session")
    parser.add_argument("--from", dest="checkpoint", metavar="CHECKPOINT", help="begin there (default: as it is now)")
    add_session(parser)
    add_examples(parser, "kernel-gateway branch -s demo demo-b", "kernel-gateway branch -s demo demo-b --from loaded")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Make the new session."""
    body = {"as": arguments.name} | ({} if arguments.checkpoint is None else {"from": arguments.checkpoint})
    remote.json("POST", f"{path_of(arguments.session)}/branch", body)
