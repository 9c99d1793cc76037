"""`kernel-gateway executions`: list, show and end executions of a session that run without their client."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from kernel_gateway.cli.client_command import add_examples, add_session, client_command, print_json, print_list
from kernel_gateway.cli.remote import Remote, path_of, told
from kernel_gateway.cli.run import show_output
from kernel_gateway.client import GatewayError

ACTIONS = {
    "list": "list the executions, newest first",
    "show": "print what an execution has shown until now, and how it ended",
    "end": "interrupt an execution, and no other cell; if its turn has not come, it never runs",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION", help="what to do")
    listing, show, end = (parsers.add_parser(name, help=text, description=text) for name, text in ACTIONS.items())
    for each in (show, end):
        each.add_argument("execution", metavar="ID", help="the execution, as `run --detach` prints it")
    for each in (listing, show):
        each.add_argument("--json", action="store_true", help="print the reply as JSON")
    add_session(parser, listing, show, end)
    add_examples(
        parser,
        "kernel-gateway run -s demo --detach train.py",
        "kernel-gateway executions list -s demo",
        "kernel-gateway executions show -s demo 3f2a9c",
        "kernel-gateway executions end -s demo 3f2a9c",
    )


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Run one action."""
    {"list": _list, "show": _show, "end": _end}[arguments.action](arguments, remote)


def _list(arguments: argparse.Namespace, remote: Remote) -> None:
    reply = remote.json("GET", f"{path_of(arguments.session)}/executions")
    rows = (
        (each["id"], (each["created_at"] or "-")[:16].replace("T", " "), _end_of(each)) for each in reply["executions"]
    )
    print_list(reply, rows, json=arguments.json)


def _show(arguments: argparse.Namespace, remote: Remote) -> None:
    reply = remote.json("GET", _path(arguments))
    if arguments.json:
        print_json(reply)
        return
    for output in reply["outputs"]:
        show_output(output)
    print(f"[{_end_of(reply)}]")
    if failure := reply["error"]:
        print(told(GatewayError(failure)))
    elif not reply["outputs_kept"]:
        print("its outputs are no longer kept")


def _end(arguments: argparse.Namespace, remote: Remote) -> None:
    remote.json("DELETE", _path(arguments))


def _path(arguments: argparse.Namespace) -> str:
    execution = quote(arguments.execution.encode(errors="surrogateescape"), safe="")
    return f"{path_of(arguments.session)}/executions/{execution}"


def _end_of(execution: dict[str, Any]) -> str:
    """Return how an execution ended, or its status until then."""
    result = execution["result"]
    return str(execution["status"] if result is None else result["status"])
