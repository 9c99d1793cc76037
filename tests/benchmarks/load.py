"""A hundred live sessions on one machine: checks for failures and cross-talk, and measures an execution.

Every session runs cells that depend on its earlier cells and print a word that only this session has. One session in a
hundred is hostile. Then sessions are made and deleted, and the gateway's resources must not grow. Run by hand:

    .venv/bin/python tests/benchmarks/load.py [--sessions N] [--executes N] [--churn N] [--isolation docker|process]
"""

from __future__ import annotations

import argparse
import itertools
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import percentile, say
from tests.gateways import KEYS, Gateway, gateway, text_of

#: parallel clients: as many as two processors serve without a queue
CLIENTS = 4
#: sessions made in parallel
MAKERS = 4
TENANTS = list(KEYS)
MIB = 1024**2
#: cells of the hostile sessions, in turn; each harms only its own session
HOSTILE = (
    "while True: pass",
    "x = []\nwhile True: x.append(bytearray(1 << 23))",
    "import os\nos._exit(3)",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "while True: print('x' * 10_000)",
)
#: timeouts in seconds for a cell, and for a hostile one
PATIENT, SHORT = 120.0, 2.0
#: seconds before each measurement of resources while sessions are made and deleted
LOOK = 5.0


@dataclass
class Live:
    """One session, and the state that it must keep."""

    number: int
    word: str = field(default_factory=lambda: secrets.token_hex(8))
    count: int = 0

    @property
    def name(self) -> str:
        return f"load-{self.number}"

    @property
    def tenant(self) -> str:
        return TENANTS[self.number % len(TENANTS)]

    @property
    def hostile(self) -> bool:
        return self.number % 100 == 99


class Caller:
    """One client with its own connection."""

    def __init__(self, serving: Gateway) -> None:
        self._serving = serving
        self._http = requests.Session()

    def execute(self, live: Live, code: str, seconds: float = PATIENT) -> dict[str, Any]:
        """Run a cell and return its reply."""
        response = self._http.post(
            f"{self._serving.url}/v1/sessions/{live.name}/execute",
            json={"code": code, "timeout": seconds},
            headers={"Authorization": f"Bearer {KEYS[live.tenant]}"},
            timeout=PATIENT + 60,
        )
        assert response.status_code == 200, (live.name, response.text)
        reply: dict[str, Any] = response.json()
        return reply

    def begin(self, live: Live) -> float:
        """Make a session and set its word; return the seconds."""
        began = time.perf_counter()
        reply = self.execute(live, f"n = 0; word = {live.word!r}")
        assert (reply["status"], reply["state"]) == ("ok", "new"), reply
        return time.perf_counter() - began

    def step(self, live: Live) -> float:
        """Run a cell that proves the session's identity and state; return the seconds."""
        began = time.perf_counter()
        reply = self.execute(live, "n += 1; print(n, word)")
        took = time.perf_counter() - began
        live.count += 1
        assert (text_of(reply), reply["state"]) == (f"{live.count} {live.word}\n", "preserved"), (live, reply)
        return took

    def attack(self, live: Live) -> float:
        """Run a cell that must not harm other sessions."""
        self.execute(live, HOSTILE[live.count % len(HOSTILE)], SHORT)
        live.count += 1
        return 0.0

    def close(self) -> None:
        self._http.close()


def for_each(
    serving: Gateway, work: Iterable[Live], what: Callable[[Caller, Live], float], clients: int
) -> list[float]:
    """Apply `what` to all sessions with a few parallel clients; return the seconds of each call."""
    waiting: queue.SimpleQueue[Live] = queue.SimpleQueue()
    for live in work:
        waiting.put(live)

    def run(_number: int) -> list[float]:
        caller = Caller(serving)
        took: list[float] = []
        try:
            while True:
                try:
                    live = waiting.get_nowait()
                except queue.Empty:
                    return took
                took.append(what(caller, live))
        finally:
            caller.close()

    with ThreadPoolExecutor(clients) as threads:
        return list(itertools.chain.from_iterable(threads.map(run, range(clients))))


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
    resident = memory(serving)
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
    print(f"memory of an idle session: {resident / MIB:.0f} MiB; of the gateway: {serving.memory() / MIB:.0f} MiB")


def _attack(serving: Gateway, live: Live) -> None:
    caller = Caller(serving)
    try:
        caller.attack(live)
    finally:
        caller.close()


def memory(serving: Gateway) -> float:
    """Return the median of the containers' memory in bytes."""
    found = []
    for container in serving.containers():
        for path in (
            Path(f"/sys/fs/cgroup/system.slice/docker-{container['Id']}.scope/memory.current"),
            Path(f"/sys/fs/cgroup/docker/{container['Id']}/memory.current"),
            Path(f"/sys/fs/cgroup/memory/docker/{container['Id']}/memory.usage_in_bytes"),
        ):
            if path.exists():
                found.append(int(path.read_text()))
                break
    return median(found) if found else 0.0


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
