"""`kernel-gateway tenants`: list, limit and remove the tenants of a running gateway, with an admin's key."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from kernel_gateway.cli.client_command import add_examples, add_gateway, client_command, print_json, print_table
from kernel_gateway.cli.flags import shown
from kernel_gateway.cli.remote import Remote

#: in place of a limit: the gateway's limit again
DEFAULT = "default"
ACTIONS = {
    "list": "list the tenants, with the limits that differ from the gateway's",
    "limits": "print the limits of a tenant, after changing those that flags name",
    "remove": "revoke a tenant's keys, end its sessions and sandboxes, delete files, templates and limits",
}
_SWITCH = {"yes": True, "no": False}
#: limit → its value from a flag, and the flag's help
LIMITS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "sessions": (int, "NUMBER", "sessions and sandboxes at a time"),
    "memory": (str, "SIZE", "memory of each kernel, for example 256m"),
    "cpus": (float, "NUMBER", "processors of each kernel"),
    "disk": (str, "SIZE", "workspace of each session, for example 64m"),
    "timeout": (float, "SECONDS", "the longest timeout of a cell"),
    "images": (
        lambda text: [name for name in text.split(",") if name],
        "NAME,NAME",
        "images that a session may ask for, beside the usual one; an empty text: no others",
    ),
    "egress": (_SWITCH.__getitem__, "yes|no", "whether a session may have the network `allowlist`"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION", help="what to do")
    listing, limits, remove = (parsers.add_parser(name, help=text, description=text) for name, text in ACTIONS.items())
    for action in (limits, remove):
        action.add_argument("tenant", metavar="TENANT", help="the tenant's name")
    for name, (kind, metavar, text) in LIMITS.items():
        limits.add_argument(
            f"--{name}",
            type=_or_default(kind),
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=f"{text}; `{DEFAULT}`: the gateway's limit",
        )
    for each in (listing, limits, remove):
        each.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_gateway(parser, listing, limits, remove)
    add_examples(
        parser,
        "kernel-gateway tenants list",
        "kernel-gateway tenants limits team-a",
        "kernel-gateway tenants limits team-a --sessions 5 --memory 256m",
        "kernel-gateway tenants limits team-a --memory default",
        "kernel-gateway tenants remove team-a",
    )


def _or_default(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that reads a flag's text: None for the gateway's limit, or a value."""

    def read(text: str) -> Any:
        try:
            return None if text == DEFAULT else kind(text)
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r} is no value of this limit, nor `{DEFAULT}`") from None

    return read


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Run one action."""
    {"list": _list, "limits": _limits, "remove": _remove}[arguments.action](arguments, remote)


def _list(arguments: argparse.Namespace, remote: Remote) -> None:
    reply = remote.json("GET", "/v1/admin/tenants")
    if arguments.json:
        print_json(reply)
        return
    print_table((each["tenant"], _own(each["limits"])) for each in reply["tenants"])


def _limits(arguments: argparse.Namespace, remote: Remote) -> None:
    path = f"{_path(arguments)}/limits"
    changes = {name: getattr(arguments, name) for name in LIMITS if hasattr(arguments, name)}
    reply = remote.json("PATCH", path, changes) if changes else remote.json("GET", path)
    if arguments.json:
        print_json(reply)
        return
    print_table((name, _text(limit["value"]), _source(limit)) for name, limit in reply.items())


def _remove(arguments: argparse.Namespace, remote: Remote) -> None:
    reply = remote.json("DELETE", _path(arguments))
    if arguments.json:
        print_json(reply)
        return
    print_table((name, str(number)) for name, number in reply.items())


def _path(arguments: argparse.Namespace) -> str:
    return f"/v1/admin/tenants/{quote(arguments.tenant.encode(errors='surrogateescape'), safe='')}"


def _own(limits: dict[str, Any]) -> str:
    """Return the limits that differ from the gateway's, as flags set them."""
    own = (f"{name}={_text(limit['value'])}" for name, limit in limits.items() if limit["source"] != "gateway")
    return " ".join(own) or "-"


def _source(limit: dict[str, Any]) -> str:
    """Return who has set a limit, and the most that it may be."""
    most = f" (most: {_text(limit['most'])})" if limit["source"] != "gateway" else ""
    return f"{limit['source']}{most}"


def _text(value: Any) -> str:
    """Return a limit's value as a flag takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (",".join(value) or "-") if isinstance(value, list) else shown(value)
