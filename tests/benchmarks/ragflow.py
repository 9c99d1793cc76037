"""Measures a program over `/run`, beside a cell in an existing session and one in a session from the pool.

One gateway, one run, the ways take turns, and each finds a warm kernel: read the ratios and differences. Run by hand:

    .venv/bin/python tests/benchmarks/ragflow.py [--isolation docker|process] [--image NAME] [--rounds N]
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import percentile, say
from tests.benchmarks.serving import until_warm
from tests.benchmarks.ways import AUTHORIZATION, CODE
from tests.gateways import Gateway, gateway

SESSION = "bench"
PROGRAM = {"code_b64": base64.b64encode(f"def main(): return {CODE}".encode()).decode(), "arguments": {}}
WAYS = ("execute, session there", "execute, session from the pool", "/run from the pool")
#: the way with which the others are compared
BASE = WAYS[0]
#: seconds until a started kernel is at rest, and a discarded one has ended
REST = 1.0


class Client:
    """One kept connection."""

    def __init__(self, serving: Gateway) -> None:
        self._connection = HTTPConnection(serving.url.removeprefix("http://"))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its parsed answer."""
        self._connection.request("POST", path, json.dumps(body), AUTHORIZATION)
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return answer

    def execute(self, session: str) -> None:
        """Run the cell."""
        answer = self.post(f"/v1/sessions/{session}/execute", {"code": CODE})
        assert answer["status"] == "ok", answer

    def run(self) -> None:
        """Run the program."""
        answer = self.post("/run", PROGRAM)
        assert answer["result"]["value"] == 2, answer


def measure(serving: Gateway, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each run, by way."""
    client = Client(serving)
    client.execute(SESSION)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        fresh = f"fresh-{number}"
        runs: tuple[Callable[[], None], ...] = (
            lambda: client.execute(SESSION),
            lambda name=fresh: client.execute(name),  # type: ignore[misc]
            client.run,
        )
        # In random order, so that no way always has the same one before it.
        for way, run in random.sample(list(zip(WAYS, runs, strict=True)), len(WAYS)):
            until_warm(serving)
            time.sleep(REST)
            begin = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - begin)
        serving.call("DELETE", f"/v1/sessions/{fresh}")
        if number % 5 == 4:
            say(f"round {number + 1} of {rounds}")
    return seconds


def row(way: str, seconds: list[float], base: list[float]) -> str:
    """Return one line of the table."""
    p50, p99 = median(seconds), percentile(seconds, 0.99)
    more = (p50 - median(base)) * 1e3
    return f"| {way} | {p50 * 1e3:.1f} | {p99 * 1e3:.1f} | {p50 / median(base):.2f} | {more:+.1f} |"


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker", choices=["docker", "process"])
    parser.add_argument("--image", default="kernel-gateway/python:latest")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    say("starting a gateway with warm kernels")
    with gateway(arguments.isolation, pool_size="2", image=arguments.image) as serving:
        found = measure(serving, arguments.rounds)
    print(f"`{CODE}` on {arguments.isolation} kernels, {arguments.rounds} runs each\n")
    print("| way | p50 ms | p99 ms | p50 to the first | p50 more, ms |\n|---|---|---|---|---|")
    for way, seconds in found.items():
        print(row(way, seconds, found[BASE]))


if __name__ == "__main__":
    main()
