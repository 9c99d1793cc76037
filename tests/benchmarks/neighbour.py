"""One tenant's worst second: what a tenant and `/healthz` notice of another tenant's attacks.

A canary of one tenant runs `1+1` in its session again and again, while another tenant attacks, and a second client
asks for `/healthz`. Each attack lasts the same time. The run fails when an attack makes the canary's 95th percentile
more than three times what it is at rest, or `/healthz` slower than 100 ms. Run by hand, alone on the machine:

    .venv/bin/python tests/benchmarks/neighbour.py [--seconds N] [--only PATTERN] [--isolation docker|process]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.attacks import BY_LOAD, CANARY, Attack, Client, nothing
from tests.benchmarks.figures import engine, machine, percentile, say
from tests.benchmarks.loop_attacks import BY_LOOP
from tests.gateways import KEYS, Gateway, gateway

#: seconds between two calls of the canary, and of the client that asks for `/healthz`
BEAT = 0.05
#: the most that an attack may cost the others: the canary's 95th percentile as a multiple of the one at rest, and
#: seconds until `/healthz` has answered
MOST_DELAY = 3.0
MOST_HEALTH = 0.1
ATTACKS: dict[str, Attack] = {"nothing": nothing, **BY_LOAD, **BY_LOOP}
#: the attackers' own work must not delay the canary's client; a process that is made otherwise would prepare nothing
FORK = multiprocessing.get_context("fork")


@dataclass
class Calls:
    """How long the calls of one kind took, in seconds."""

    took: list[float] = field(default_factory=list)

    def repeat(self, call: Callable[[], requests.Response], over: threading.Event) -> None:
        """Repeat a call until the time is over."""
        while not over.is_set():
            began = time.perf_counter()
            answer = call()
            self.took.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            over.wait(BEAT)


@dataclass(frozen=True)
class Seen:
    """What was measured during one attack."""

    canary: list[float]
    health: list[float]
    #: seconds until a new session of the canary's tenant had run its first cell
    new: float

    def delay(self, rest: Seen) -> float:
        """Return the canary's 95th percentile as a multiple of the one at rest."""
        return percentile(self.canary, 0.95) / percentile(rest.canary, 0.95)

    def too_much(self, rest: Seen) -> bool:
        """Return whether the others noticed more than they may."""
        return self.delay(rest) > MOST_DELAY or max(self.health) > MOST_HEALTH

    def row(self, name: str, rest: Seen) -> str:
        """Return a row of the table, with the ratio to the measurement at rest."""
        times = " | ".join(f"{1000 * percentile(self.canary, each):.0f}" for each in (0.5, 0.95, 0.99))
        health = f"{1000 * max(self.health):.0f}"
        return f"| {name} | {len(self.canary)} | {times} | {self.delay(rest):.1f} | {health} | {self.new:.1f} |"


def measure(serving: Gateway, attack: Attack, seconds: float) -> Seen:
    """Attack for some seconds, and measure meanwhile what the others notice."""
    canary = Client(serving, CANARY)
    for _ in range(20):
        assert canary.execute("canary", "1+1").status_code == 200
    attacking = FORK.Process(target=at_once, args=([*attack(serving, seconds)],))
    attacking.start()
    over, ones, health = threading.Event(), Calls(), Calls()
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(3))
        stack.callback(over.set)
        time.sleep(0.5)
        watching: list[Future[Any]] = [
            threads.submit(ones.repeat, partial(canary.execute, "canary", "1+1"), over),
            threads.submit(health.repeat, partial(Client(serving, CANARY).call, "GET", "/healthz"), over),
        ]
        began = time.perf_counter()
        assert Client(serving, CANARY).execute("new", "1+1").status_code == 200
        new = time.perf_counter() - began
        time.sleep(max(0.0, seconds - 1.0 - new))
        over.set()
        for each in watching:
            each.result()
    attacking.join()
    assert attacking.exitcode == 0
    clean(serving)
    return Seen(ones.took, health.took, new)


def at_once(deeds: Sequence[Callable[[], object]]) -> None:
    """Do all deeds, each in a thread of this process.

    An attacker's client is on another machine, and takes no processor time from the gateway and its kernels. So the
    process gets only the time that nobody else wants.
    """
    os.nice(19)
    if deeds:
        with ThreadPoolExecutor(len(deeds)) as threads:
            for done in [threads.submit(each) for each in deeds]:
                done.result()


def clean(serving: Gateway) -> None:
    """End all sessions."""
    for tenant in KEYS:
        client = Client(serving, tenant)
        for session in client.call("GET", "/v1/sessions").json()["sessions"]:
            client.call("DELETE", f"/v1/sessions/{session['name']}")


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each attack")
    parser.add_argument("--only", default="", help="pattern in an attack's name")
    arguments = parser.parse_args()
    print(f"{machine()}, {engine()}\n")
    print("| attack | cells | canary p50 ms | p95 | p99 | p95 / at rest | healthz max ms | new session s |")
    print("|---|---|---|---|---|---|---|---|")
    with gateway(arguments.isolation, memory="256m") as serving:
        rest: Seen | None = None
        failed: list[str] = []
        for name, attack in ATTACKS.items():
            if attack is nothing or re.search(arguments.only, name):
                say(name)
                seen = measure(serving, attack, arguments.seconds)
                rest = rest or seen
                print(seen.row(name, rest), flush=True)
                if seen.too_much(rest):
                    failed.append(name)
    if failed:
        sys.exit(f"the others noticed too much of: {', '.join(failed)}")


if __name__ == "__main__":
    main()
