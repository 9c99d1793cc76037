"""`kernel-gateway replay`: run the cells of a session or a notebook again in a fresh session, and compare them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernel_gateway.cli.client_command import add_examples, add_gateway, forget_output, problem
from kernel_gateway.cli.flags import client_from
from kernel_gateway.cli.remote import Failed, Remote, told
from kernel_gateway.cli.variables import shown
from kernel_gateway.client import GatewayError

#: exit code when each cell that ran has the outputs that it had, when one has not, and when the replay was not done
SAME, DIFFERENT, FAILED = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "source", metavar="SESSION|NOTEBOOK", help="name of a session, or a file with a notebook (.ipynb)"
    )
    parser.add_argument("--as", dest="name", required=True, metavar="NAME", help="name of the fresh session")
    parser.add_argument("-t", "--timeout", type=float, help="seconds each cell may run")
    parser.add_argument("--seed", type=int, help="number from which random numbers get their seed before each cell")
    parser.add_argument("--json", action="store_true", help="print each cell as a line of JSON")
    add_gateway(parser)
    add_examples(
        parser,
        "kernel-gateway replay demo --as demo-again",
        "kernel-gateway replay analysis.ipynb --as check --seed 1",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the cells again, and print how each has ended as it ends.

    Returns:
        0 when all cells that ran have the same outputs; 1 when a cell has others; 2 when the replay was not done.
    """
    try:
        body = _body(arguments)
        remote = Remote(client_from(arguments))
        with remote.answer("POST", "/v1/replay", json.dumps(body).encode(), Accept="application/x-ndjson") as pieces:
            return _printed(map(json.loads, _lines(pieces)), as_json=arguments.json)
    except BrokenPipeError:
        forget_output()
        return FAILED
    except (Failed, OSError, ValueError) as error:
        print(f"kernel-gateway: {problem(error)}", file=sys.stderr)
        return FAILED


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    source = arguments.source
    if source.endswith(".ipynb"):
        try:
            source = json.loads(Path(source).read_text())
        except ValueError as error:
            raise ValueError(f"{arguments.source} is no notebook: {error}") from error
    asked = {"timeout": arguments.timeout, "seed": arguments.seed}
    return {"from": source, "as": arguments.name} | {name: value for name, value in asked.items() if value is not None}


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of an answer, each when its end has come."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def _printed(events: Iterable[dict[str, Any]], *, as_json: bool) -> int:
    """Print the events of a replay, and return the exit code."""
    for event in events:
        if as_json:
            print(json.dumps(event), flush=True)
        if event["type"] == "error":
            raise Failed(told(GatewayError(event["error"])))
        if event["type"] == "end":
            if not as_json:
                missing = f", {event['missing']} not kept" if event["missing"] else ""
                print(f"{event['same']} same, {event['different']} different, {event['skipped']} skipped{missing}")
            return DIFFERENT if event["different"] else SAME
        if not as_json:
            _print_cell(event)
    raise Failed("the replay has ended without its last event")


def _print_cell(cell: dict[str, Any]) -> None:
    if cell["skipped"]:
        print(f"{cell['number']:4}  skipped    {shown(cell['skipped'])}", flush=True)
        return
    ended = "" if cell["status"] == "ok" else f"  ({cell['status']})"
    print(f"{cell['number']:4}  {'same' if cell['same'] else 'different'}{ended}", flush=True)
    for difference in cell["differences"]:
        print(f"      {shown(difference['where'])}")
        for sign, side in (("-", "before"), ("+", "after")):
            for line in (difference[side] or "").splitlines():
                print(f"      {sign} {shown(line)}")
