"""`kernel-gateway create`: make a session whose settings differ from the usual ones."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.client_command import add_examples, add_session, client_command
from kernel_gateway.cli.remote import Remote

#: limits of the session: name, type, and the flag's help
LIMITS = (
    ("memory", str, "SIZE", "memory of its kernel, for example 256m"),
    ("cpus", float, "NUMBER", "processors of its kernel"),
    ("processes", int, "NUMBER", "processes of its kernel"),
    ("disk", str, "SIZE", "size of its workspace, for example 64m"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags; each but the session's name is a field of the call's body."""
    parser.add_argument("--language", help="its language, as `kernel-gateway languages` lists them")
    parser.add_argument(
        "--idle-timeout", type=float, metavar="SECONDS", help="seconds after which it is idle for too long"
    )
    parser.add_argument("--on-idle", choices=("auto", "end", "sleep"), help="what happens to it then")
    parser.add_argument("--checkpoints", choices=("manual", "auto"), help="auto: one is taken before each cell")
    parser.add_argument("--image", help="image of its kernel, one that the operator offers")
    for name, kind, metavar, text in LIMITS:
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=f"{text}; at most the tenant's limit")
    add_session(parser)
    add_examples(
        parser,
        "kernel-gateway create -s demo-js --language javascript",
        "kernel-gateway create -s small --memory 256m --cpus 0.5",
        "kernel-gateway create -s long --on-idle sleep --checkpoints auto",
    )


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Make the session and start its kernel."""
    chosen = {
        name: getattr(arguments, name) for name in ("language", "idle_timeout", "on_idle", "checkpoints", "image")
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    if limits := {name: getattr(arguments, name) for name, *_ in LIMITS if getattr(arguments, name) is not None}:
        given["limits"] = limits
    remote.json("POST", "/v1/sessions", {"name": arguments.session, **given})
