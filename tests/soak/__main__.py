"""An hour of mixed tenants, some of them hostile: memory, descriptors, threads, tasks and containers stay flat.

    make soak [MINUTES=60]

Four honest tenants play the scenes of `scenes.py`, one of each twenty scenes is a hostile one of `hostile.py`, and a
canary counts in its own session once a second. Every minute a line is printed, at the end the verdict: the fit of a
line over the second half, and the numbers of containers, volumes and mounts, which are those of the start again.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from tests.attacks.bench import forget_network
from tests.attacks.vitals import faults
from tests.benchmarks.figures import engine, machine, percentile, say
from tests.gateways import Gateway, gateway
from tests.soak.gauges import HEAD, Gauges, Reading
from tests.soak.hostile import HOSTILE
from tests.soak.scenes import SCENES, WEIGHTS, count_on
from tests.soak.tenants import Tenant
from tests.soak.verdict import RETURNS, findings

NETWORK = "kernel-gateway-soak"
HONEST = ("ada", "ben", "cleo", "dan")
KEYS = {name: f"{name}-key-of-the-soak" for name in (*HONEST, "canary")}
#: share of hostile scenes
EVIL = 0.05
#: lines of a short run
LINES = 12
#: seconds in which everything ends after the last scene
ENDS = 180.0


@dataclass
class Run:
    """What the threads of one soak share."""

    serving: Gateway
    #: seconds between two scenes of a tenant
    pause: float
    over: threading.Event = field(default_factory=threading.Event)
    played: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    #: seconds of the canary's cells since the last line
    took: list[float] = field(default_factory=list)

    def tenant(self, name: str, seed: int = 0) -> Tenant:
        """Return a tenant with its own randomness."""
        return Tenant(self.serving, name, KEYS[name], random.Random(f"{name} {seed}"))  # noqa: S311 - a seed repeats it

    def plays(self, tenant: Tenant) -> None:
        """Play scenes until the end; what surprises is noted, and the next scene is played."""
        while not self.over.wait(self.pause * tenant.random.uniform(0.5, 1.5)):
            evil = tenant.random.random() < EVIL
            scene = tenant.random.choice(HOSTILE) if evil else tenant.random.choices(SCENES, WEIGHTS)[0]
            name = "hostile" if evil else getattr(scene, "__name__", "")
            self.tries(lambda scene=scene: scene(tenant), f"{tenant.name}: {name}")  # type: ignore[misc]
            self.played[name] += 1

    def counts(self, tenant: Tenant) -> None:
        """Count once a second in one session, whose variables must last."""
        while not self.over.wait(1.0):
            began = time.perf_counter()
            self.tries(lambda: count_on(tenant, "canary"), "canary")
            self.took.append(time.perf_counter() - began)

    def tries(self, scene: Callable[[], None], name: str) -> None:
        """Play one scene."""
        try:
            scene()
        except Exception as error:  # noqa: BLE001 - reported in the verdict
            self.surprises.append(f"{name}: {type(error).__name__}: {str(error)[:600]}")
            say(self.surprises[-1])


@contextmanager
def under_load(run: Run, seed: int) -> Iterator[None]:
    """Let all tenants play, and end all of their sessions afterwards."""
    tenants = [run.tenant(name, seed) for name in HONEST]
    canary = run.tenant("canary")
    with ThreadPoolExecutor(len(tenants) + 1) as threads:
        for tenant in tenants:
            threads.submit(run.plays, tenant)
        threads.submit(run.counts, canary)
        try:
            yield
        finally:
            run.over.set()
    for tenant in (*tenants, canary):
        for session in tenant.call("GET", "/v1/sessions").json()["sessions"]:
            tenant.end(session["name"])


def settled(gauges: Gauges) -> Reading:
    """Wait until nothing but warm kernels is left, and return the reading."""
    deadline = time.monotonic() + ENDS
    while True:
        seen = gauges.read()
        if not any(getattr(seen, name) for name in RETURNS) or time.monotonic() > deadline:
            return seen
        time.sleep(2)


def soak(run: Run, gauges: Gauges, minutes: float, seed: int) -> Iterator[str]:
    """Play, print a line each minute, and yield the findings at the end."""
    tenant = run.tenant(HONEST[0])
    for language in ("python", "javascript"):  # the pool keeps kernels of both from now on
        tenant.call("POST", "/v1/sessions", json={"name": language, "language": language})
        tenant.end(language)
    start, readings = settled(gauges), []
    print(f"| minute | {HEAD} | scenes | surprises | canary p50 ms | p95 |\n|{'---|' * (HEAD.count('|') + 6)}")
    print(f"| 0 | {start.row()} | 0 | 0 | | |", flush=True)
    began, lines = time.monotonic(), max(LINES, round(minutes))
    with under_load(run, seed):
        for line in range(1, lines + 1):
            time.sleep(max(0.0, began + line * minutes * 60 / lines - time.monotonic()))
            reading, took, run.took = gauges.read(), run.took, []
            readings.append(reading)
            cells = " | ".join(f"{1000 * percentile(took, share):.0f}" if took else "-" for share in (0.5, 0.95))
            played = f"{sum(run.played.values())} | {len(run.surprises)}"
            print(f"| {line * minutes / lines:.1f} | {reading.row()} | {played} | {cells} |", flush=True)
    end = settled(gauges)
    print(f"| end | {end.row()} | {sum(run.played.values())} | {len(run.surprises)} | | |\n", flush=True)
    yield from findings(start, readings, end)
    yield from (f"surprise: {surprise}" for surprise in run.surprises)
    yield from (f"log: {line[:300]}" for line in faults(run.serving.log.read_text()))


def main() -> int:
    """Run the soak; return 0 if it was flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1.0, help="scenes per second of all tenants together")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{machine()}, {engine()}; {arguments.rate:g} scenes/s, seed {arguments.seed}\n")
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    try:
        settings = {"keys": keys, "memory": "512m", "idle_timeout": "3600", "pool_size": "1", "pool_max": "2"}
        settings["golden_images"] = "auto"
        with gateway("docker", network=NETWORK, **settings) as serving, closing(Gauges(serving)) as gauges:  # type: ignore[arg-type]  # no flags
            serving.wait_for_sleep()
            run = Run(serving, len(HONEST) / arguments.rate)
            found = list(soak(run, gauges, arguments.minutes, arguments.seed))
            print(f"played: {dict(run.played.most_common())}")
    finally:
        forget_network(NETWORK)
    print("\n".join(found) if found else f"flat over {arguments.minutes:g} minutes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
