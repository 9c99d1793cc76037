"""`kernel-gateway interrupt`: interrupt the running cell of a session."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_session(parser)
    add_examples(parser, "kernel-gateway interrupt -s demo")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Interrupt the cell, and say whether one was running; the variables stay."""
    reply = remote.json("POST", f"{path_of(arguments.session)}/interrupt")
    print("the cell was interrupted" if reply["interrupted"] else "no cell was running")
