"""`kernel-gateway sessions`: list the sessions of the key's tenant, or with an admin's key those of all tenants."""

from __future__ import annotations

import argparse
from typing import Any

from kernel_gateway.cli.client_command import add_examples, add_gateway, client_command, print_list
from kernel_gateway.cli.remote import Remote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="print all that is known about them, as JSON")
    parser.add_argument(
        "--all", action="store_true", help="those of all tenants, with their memory; needs an admin's key"
    )
    add_gateway(parser)
    add_examples(parser, "kernel-gateway sessions", "kernel-gateway sessions --json", "kernel-gateway sessions --all")


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Print a line for each session: name, language, state, and when it was last used (UTC)."""
    if arguments.all:
        reply = remote.json("GET", "/v1/admin/sessions")
        print_list(reply, map(_row_of_all, reply["sessions"]), json=arguments.json)
        return
    reply = remote.json("GET", "/v1/sessions")
    rows = (
        (each["name"], each["language"], each["state"], each["last_activity"][:16].replace("T", " "))
        for each in reply["sessions"]
    )
    print_list(reply, rows, json=arguments.json)


def _row_of_all(session: dict[str, Any]) -> tuple[str, ...]:
    """Return a line of an admin's list: tenant, name, language, state, idle seconds, MiB of memory."""
    memory = "-" if session["memory_bytes"] is None else f"{session['memory_bytes'] // 1024**2} MiB"
    names = tuple(str(session[field]) for field in ("tenant", "name", "language", "state"))
    return (*names, f"{session['idle_seconds']:.0f} s", memory)
