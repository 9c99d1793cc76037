"""`kernel-gateway notebook`: export the cells of a session as a notebook."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command
from kernel_gateway.cli.files import receive
from kernel_gateway.cli.remote import Remote, path_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="the file to write; - or none: standard output")
    add_session(parser)
    add_examples(parser, "kernel-gateway notebook -s demo demo.ipynb", "kernel-gateway notebook -s demo > demo.ipynb")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Write all cells that were run, with their outputs, as `.ipynb`."""
    receive(remote, f"{path_of(arguments.session)}/notebook", arguments.file)
