"""`kernel-gateway rollback`: return a session to a checkpoint."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the checkpoint; without it the last one")
    add_session(parser)
    add_examples(parser, "kernel-gateway rollback -s demo", "kernel-gateway rollback -s demo loaded")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Return to a checkpoint: variables and files are as they were then."""
    body = {} if arguments.name is None else {"to": arguments.name}
    remote.json("POST", f"{path_of(arguments.session)}/rollback", body)
