"""Measures `run_code` over MCP in both eras, beside the native API's execute, all on the same kernel.

One gateway, one run, the ways take turns: read the ratios. Run by hand:

    .venv/bin/python -m tests.benchmarks.mcp [--isolation docker|process] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import time
from collections.abc import Callable
from http.client import HTTPConnection
from statistics import median

from tests.benchmarks.figures import say, spread
from tests.benchmarks.ways import AUTHORIZATION, CODE
from tests.gateways import Gateway, gateway
from tests.kernel_gateway.mcp import ERAS

#: the way with which the others are compared
BASE = "native execute"
KEYED = "native execute with a key"
SESSION = "measured"


def measure(serving: Gateway, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each run, by way."""
    connection = HTTPConnection(serving.url.removeprefix("http://"))

    def post(path: str, headers: dict[str, str], body: object) -> bytes:
        connection.request("POST", path, json.dumps(body), headers | AUTHORIZATION)
        return connection.getresponse().read()

    def native(**fields: str) -> bool:
        return b'"ok"' in post(f"/v1/sessions/{SESSION}/execute", {}, {"code": CODE, **fields})

    def over(era: str) -> bool:
        wire = ERAS[era]("tools/call", name="run_code", arguments={"session": SESSION, "code": CODE})
        return b'"status":"ok"' in post("/mcp", wire.headers, wire.body)

    ways: dict[str, Callable[[], bool]] = {
        BASE: native,
        KEYED: lambda: native(idempotency_key=secrets.token_hex(8)),
        "run_code, modern era": lambda: over("modern"),
        "run_code, legacy era": lambda: over("legacy"),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in random.sample(list(ways.items()), len(ways)):
            begin = time.perf_counter()
            assert run(), way
            seconds[way].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", default="docker", choices=("docker", "process"))
    parser.add_argument("--rounds", type=int, default=300)
    chosen = parser.parse_args()
    with gateway(chosen.isolation) as serving:
        measure(serving, 20)
        seconds = measure(serving, chosen.rounds)
    base = median(seconds[BASE])
    for way, all_of_it in seconds.items():
        say(f"{way:28} {spread(all_of_it)}  {median(all_of_it) / base:.2f} x")


if __name__ == "__main__":
    main()
