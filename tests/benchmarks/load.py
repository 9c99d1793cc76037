"""A hundred live sessions on one machine: checks for failures and cross-talk, and measures an execution.

Every session runs cells that depend on its earlier cells and print a word that only this session has. One session in a
hundred is hostile. Then sessions are made and deleted, and the gateway's resources must not grow. Run by hand:

    .venv/bin/python tests/benchmarks/load.py [--sessions N] [--executes N] [--churn N] [--isolation docker|process]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import percentile, say
from tests.benchmarks.live import Caller, Live, control_groups, for_each
from tests.gateways import Gateway, gateway

#: parallel clients: as many as two processors serve without a queue
CLIENTS = 4
#: sessions made in parallel
MAKERS = 4
MIB = 1024**2
#: seconds before each measurement of resources while sessions are made and deleted
LOOK = 5.0


def load(serving: Gateway, sessions: int, executes: int) -> None:
    """Measure cells while all sessions are alive."""
    every = [Live(number) for number in range(sessions)]
    peaceful = [live for live in every if not live.hostile]
    alone = Caller(serving)
    first = Live(sessions)
    alone.begin(first)
    base = [alone.step(first) for _ in range(200)]
    alone.close()
    say(f"making {sessions} sessions")
    created = for_each(serving, every, Caller.begin, MAKERS)
    held = [size for group in control_groups(serving) if (size := group.memory()) is not None]
    say(f"{executes} cells in each")
    busy: list[float] = []
    for number in range(executes):
        attackers = [threading.Thread(target=_attack, args=(serving, live)) for live in every if live.hostile]
        for attacker in attackers:
            attacker.start()
        busy += for_each(serving, peaceful, Caller.step, CLIENTS)
        for attacker in attackers:
            attacker.join()
        say(f"round {number + 1} of {executes}")
    say("one client, all of them idle")
    quiet = for_each(serving, peaceful, Caller.step, 1)
    print(f"{sessions} live sessions, {len(busy)} cells by {CLIENTS} clients at a time: no failure, no cross-talk\n")
    print("| | p50 ms | p95 ms | p99 ms |\n|---|---|---|---|")
    for name, seconds in (
        ("a new session", created),
        ("a cell, one session alive", base),
        (f"a cell, {sessions} alive, one client", quiet),
        (f"a cell, {sessions} alive, {CLIENTS} clients", busy),
    ):
        print(f"| {name} | {' | '.join(f'{percentile(seconds, share) * 1e3:.1f}' for share in (0.5, 0.95, 0.99))} |")
    print(
        f"\np95 with {sessions} alive to one alive, one client: {percentile(quiet, 0.95) / percentile(base, 0.95):.2f}"
    )
    if held:
        print(f"memory of an idle session: {median(held) / MIB:.0f} MiB")
    print(f"memory of the gateway: {serving.memory() / MIB:.0f} MiB")


def _attack(serving: Gateway, live: Live) -> None:
    caller = Caller(serving)
    try:
        caller.attack(live)
    finally:
        caller.close()


@dataclass(frozen=True)
class Held:
    """The gateway's resources while no session exists."""

    descriptors: int
    threads: int
    containers: int
    resident: int

    @classmethod
    def of(cls, serving: Gateway) -> Held:
        process = Path(f"/proc/{serving.process.pid}")
        return cls(
            len(list((process / "fd").iterdir())),
            len(list((process / "task").iterdir())),
            len(serving.containers()),
            serving.memory(),
        )


def churn(serving: Gateway, sessions: int) -> None:
    """Make and delete sessions; the resources at the end must be those after the first quarter."""

    def live_and_die(caller: Caller, live: Live) -> float:
        took = caller.begin(live)
        caller.step(live)
        assert serving.call("DELETE", f"/v1/sessions/{live.name}", tenant=live.tenant).status_code == 204
        return took

    rounds = 4
    held = []
    for number in range(rounds):
        lives = [Live(number * sessions + each) for each in range(sessions // rounds)]
        for_each(serving, lives, live_and_die, CLIENTS)
        time.sleep(LOOK)
        held.append(Held.of(serving))
        say(f"{(number + 1) * (sessions // rounds)} of {sessions}: {held[-1]}")
    first, last = held[0], held[-1]
    print(f"\n{sessions} sessions came and went; held after the first quarter, and after the last:\n")
    print("| descriptors | threads | containers | resident MiB |\n|---|---|---|---|")
    for row in (first, last):
        print(f"| {row.descriptors} | {row.threads} | {row.containers} | {row.resident / MIB:.1f} |")
    assert last.descriptors <= first.descriptors + 4, "descriptors leak"
    assert last.threads <= first.threads + 1, "threads leak"
    assert last.containers <= first.containers, "containers leak"
    assert last.resident <= first.resident + 16 * MIB, "memory leaks"


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--executes", type=int, default=20)
    parser.add_argument("--churn", type=int, default=80)
    arguments = parser.parse_args()
    settings: dict[str, Any] = {"max_sessions_per_tenant": "1000", "idle_timeout": "3600", "memory": "256m"}
    say("starting a gateway")
    with gateway(arguments.isolation, pool_size="2", **settings) as serving:
        if arguments.sessions:
            load(serving, arguments.sessions, arguments.executes)
    say("starting another")
    with gateway(arguments.isolation, pool_size="0", **settings) as serving:
        if arguments.churn:
            churn(serving, arguments.churn)


if __name__ == "__main__":
    main()
