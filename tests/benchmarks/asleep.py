"""Many sessions with state of which only a few are awake: how soon any of them answers.

Every session has a word and a number that its cells change and show, so that no state is lost or mixed up unnoticed.
Idle sessions sleep on disk; a client waits while as many are awake as may be. Run by hand, in about fifteen minutes:

    .venv/bin/python tests/benchmarks/asleep.py [--sessions N] [--awake N] [--cells N]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import machine, percentile, say
from tests.benchmarks.live import TENANTS, Caller, Live, control_groups
from tests.gateways import Gateway, gateway

MIB = 1024**2
#: bytes on disk for each session, more than one takes
ROOM = 100 * MIB
#: cells at the same time, each in another session that sleeps, and how often
BURST, BURSTS = 8, 3


def awake(serving: Gateway) -> int:
    """Return how many sessions do not sleep."""
    states = [
        session["state"]
        for tenant in TENANTS
        for session in serving.call("GET", "/v1/sessions", tenant=tenant).json()["sessions"]
    ]
    return sum(state != "asleep" for state in states)


def until_awake(serving: Gateway, most: int) -> None:
    """Wait until so many sessions are awake, or fewer."""
    while awake(serving) > most:
        time.sleep(0.2)


def begin(serving: Gateway, lives: Sequence[Live], most: int) -> None:
    """Make all sessions, with a few awake at a time."""
    with closing(Caller(serving)) as caller:
        for live in lives:
            until_awake(serving, most - 1)
            caller.begin(live)
            if live.number % 25 == 24:
                say(f"{live.number + 1} sessions are made")
    until_awake(serving, 0)


def one_by_one(serving: Gateway, lives: Sequence[Live], most: int, cells: int) -> list[float]:
    """Run cells in sessions that sleep; return the seconds of each."""
    took = []
    with closing(Caller(serving)) as caller:
        for number, live in enumerate(random.sample(lives, cells)):
            until_awake(serving, most - 1)
            took.append(caller.step(live))
            if number % 20 == 19:
                say(f"{number + 1} of {cells} sessions have answered")
    until_awake(serving, 0)
    return took


def at_once(serving: Gateway, lives: Sequence[Live]) -> list[float]:
    """Run cells in several sessions that sleep, at the same time; return the seconds of each."""

    def step(live: Live) -> float:
        with closing(Caller(serving)) as caller:
            return caller.step(live)

    took: list[float] = []
    with ThreadPoolExecutor(BURST) as clients:
        for _ in range(BURSTS):
            until_awake(serving, 0)
            took += clients.map(step, random.sample(lives, BURST))
    return took


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=250, help="default: 250")
    parser.add_argument("--awake", type=int, default=8, help="sessions that are awake at a time at most; default: 8")
    parser.add_argument("--cells", type=int, default=100, help="default: 100")
    arguments = parser.parse_args()
    lives = [Live(number) for number in range(arguments.sessions)]
    settings = {
        "on_idle": "sleep",
        "idle_timeout": "2",
        "disk": "64m",  # the machine must have room for the files of all sessions at once
        "sleep_disk": str(arguments.sessions * ROOM),
        "max_share_per_tenant": "1",
        "max_sessions_per_tenant": str(arguments.sessions),
    }
    with gateway("docker", golden_images="auto", **settings) as serving:  # type: ignore[arg-type]  # no flags
        serving.wait_for_sleep()
        begun = time.perf_counter()
        begin(serving, lives, arguments.awake)
        made = time.perf_counter() - begun
        left = len(list(control_groups(serving)))
        images = sum(file.stat().st_size for file in (serving.state_dir / "asleep").rglob("*") if file.is_file())
        single = one_by_one(serving, lives, arguments.awake, arguments.cells)
        burst = at_once(serving, lives)
    print(f"{machine()}\n{len(lives)} sessions with state, made and asleep after {made:.0f} s")
    print(f"all asleep: {left} containers of sessions, {images / len(lives) / MIB:.0f} MB of disk each\n")
    print("| cells in sessions that sleep | number | p50 s | p95 s | longest s |\n|---|---|---|---|---|")
    for what, took in (("one at a time", single), (f"{BURST} at once", burst)):
        print(f"| {what} | {len(took)} | {median(took):.2f} | {percentile(took, 0.95):.2f} | {max(took):.2f} |")


if __name__ == "__main__":
    main()
