"""Measures calls of tools in code, beside `input()`: each a cell that asks again and again, in one session.

The tools are a function of a client (the client library), and a tool of an operator's MCP server; the same server is
also called without a gateway. `input()` takes the same way as a client's function, but runs none. A call is a round
trip, so it goes two ways. The kernel takes the times. Run by hand:

    .venv/bin/python -m tests.benchmarks.tools [--isolation docker|process] [--calls N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

from kernel_gateway.client import Session
from tests.benchmarks.figures import percentile, say
from tests.gateways import KEYS, Gateway, gateway

#: an MCP server with the tool `greet`, which wants a token
SERVER = Path(__file__).parents[1] / "kernel_gateway/tools/operator_server.py"
TOKEN = secrets.token_hex(8)
CREDENTIAL = f"Bearer {TOKEN}"
#: the way with which the others are compared
BASE = "input()"
#: by way: what the cell imports, and what it calls each time
CALLS = {
    BASE: ("", "input('name')"),
    "a client's function": ("from tools import greet", "greet('Ann')"),
    "a tool of an operator's server": ("from tools.tea import greet", "greet('Ann')"),
}
DIRECT = "the same tool without a gateway"


def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


def answer(_prompt: str, _hidden: bool) -> str:  # noqa: FBT001 - the library calls it so
    """Answer `input()`."""
    return "Ann"


def cell(way: str, count: int) -> str:
    """Return a cell that calls `count` times, and prints the seconds of each call."""
    imported, call = CALLS[way]
    timed = f"    begin = time.perf_counter()\n    {call}\n    took.append(time.perf_counter() - begin)\n"
    begun = f"import json, time\n{imported}\ntook = []\n{call}\n"
    return f"{begun}for _ in range({count}):\n{timed}print(json.dumps(took))"


async def direct(url: str, count: int) -> list[float]:
    """Call the server's tool from this process, each time in a conversation of its own, as the gateway does."""
    took = []
    call = CallToolRequest(params=CallToolRequestParams(name="greet", arguments={"name": "Ann"}))
    async with httpx2.AsyncClient(headers={"Authorization": CREDENTIAL}) as http:
        async with Client(streamable_http_client(url, http_client=http)) as first:
            version, found = first.protocol_version, first.session.discover_result
        for _ in range(count):
            begin = time.perf_counter()
            streams = streamable_http_client(url, http_client=http)
            mode = "legacy" if found is None else version
            async with Client(streams, mode=mode, prior_discover=found) as client:
                await client.session.send_request(call, CallToolResult)  # `call_tool` would ask for the list of tools
            took.append(time.perf_counter() - begin)
    return took


def measure(serving: Gateway, url: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call, by way; the ways take turns."""
    found: dict[str, list[float]] = defaultdict(list)
    with Session(serving.url, KEYS["alice"], "measured", tools=[greet], input=answer) as session:

        def asked(way: str) -> list[float]:
            took: list[float] = json.loads(session.run(cell(way, count)).check().text.splitlines()[-1])
            return took

        ways: dict[str, Callable[[], list[float]]] = {way: partial(asked, way) for way in CALLS}
        ways[DIRECT] = lambda: asyncio.run(direct(url, count))
        for number in range(rounds):
            for way in random.sample(list(ways), len(ways)):
                found[way] += ways[way]()
            say(f"round {number + 1} of {rounds}")
    return {way: found[way] for way in ways}


@contextmanager
def operators_server() -> Iterator[str]:
    """An MCP server as an operator has it: its address."""
    with subprocess.Popen([sys.executable, str(SERVER), TOKEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.terminate()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--isolation", default="docker", choices=("docker", "process"))
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with operators_server() as url:
        servers = {"tea": {"url": url, "tenants": ["alice"], "credential": CREDENTIAL}}
        with gateway(chosen.isolation, tool_servers=json.dumps(servers)) as serving:
            measure(serving, url, 20, 1)
            found = measure(serving, url, chosen.calls, chosen.rounds)
    base = median(found[BASE])
    print(f"on {chosen.isolation} kernels, {chosen.calls * chosen.rounds} calls each\n")
    print("| way | p50 ms | p95 ms | each way p50 ms | p50 to `input()` |\n|---|---|---|---|---|")
    for way, took in found.items():
        p50, p95 = median(took), percentile(took, 0.95)
        print(f"| {way} | {p50 * 1e3:.1f} | {p95 * 1e3:.1f} | {p50 * 500:.1f} | {p50 / base:.2f} |")


if __name__ == "__main__":
    main()
