"""`kernel-gateway restart`: start a fresh kernel in a session."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_session(parser)
    add_examples(parser, "kernel-gateway restart -s demo")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Replace the session's kernel by a fresh one; the files stay."""
    remote.json("POST", f"{path_of(arguments.session)}/restart")
