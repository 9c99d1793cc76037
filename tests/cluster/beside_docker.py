"""Measures sessions on the cluster beside the same sessions on the Docker backend, in turns.

tests/cluster/cluster.sh up
.venv/bin/python -m tests.cluster.beside_docker
tests/cluster/cluster.sh down

Each backend has a process of its own, because Docker's containers cannot be reached from beside the control plane. Both
use the same image, the same limits and gVisor. Neither restores kernels from golden images, which the cluster cannot.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from tests import gateways
from tests.benchmarks.figures import engine, machine, say
from tests.cluster.access import IMAGE, gateway
from tests.gateways import Gateway

ROUNDS, CELLS, MANY = 5, 100, 20
LIMITS = {"memory": "256m", "cpus": "0.5", "preload": "", "max_concurrent_per_tenant": str(MANY)}
#: how the process of a backend starts
WORKERS: dict[str, list[str]] = {
    "docker": [],
    "kubernetes": [str(Path(__file__).parent / "cluster.sh"), "run"],
}
WARM = 'kernel_gateway_pool_kernels{language="python"} 1.0'


@dataclass
class Measured:
    """The gateways of one backend, and the number of their sessions so far."""

    cold: Gateway
    warm: Gateway
    sessions: int = 0

    def first(self, serving: Gateway) -> float:
        """Return the seconds to the first result of a new session, and end it."""
        self.sessions += 1
        name, begun = f"s{self.sessions}", time.monotonic()
        assert serving.text(name, "1+1") == "2"
        seconds = time.monotonic() - begun
        assert serving.call("DELETE", f"/v1/sessions/{name}").ok
        return seconds

    def start(self) -> float:
        """A session whose kernel is started for it."""
        return self.first(self.cold)

    def pool(self) -> float:
        """A session whose kernel has waited."""
        while WARM not in self.warm.call("GET", "/metrics", tenant=None).text:
            time.sleep(0.1)
        return self.first(self.warm)

    def cell(self) -> float:
        """Return the median of cells of one session."""
        seconds = []
        for _ in range(CELLS):
            begun = time.monotonic()
            assert self.cold.text("cells", "1+1") == "2"
            seconds.append(time.monotonic() - begun)
        return median(seconds)

    def many(self) -> float:
        """Return the seconds until all of several sessions have their first result."""
        self.sessions += MANY
        names, begun = [f"m{self.sessions - number}" for number in range(MANY)], time.monotonic()
        with ThreadPoolExecutor(MANY) as clients:
            assert set(clients.map(lambda name: self.cold.text(name, "1+1"), names)) == {"2"}
            seconds = time.monotonic() - begun
            assert all(clients.map(lambda name: self.cold.call("DELETE", f"/v1/sessions/{name}").ok, names))
        return seconds


TITLES = {
    "start": "first result of a new session",
    "pool": "the same from the pool",
    "cell": "`1+1`, median",
    "many": f"{MANY} new sessions at once, until the last result",
}


def serve(backend: str) -> None:
    """Measure what the standard input names, line by line, and print the seconds."""
    start: Callable[..., AbstractContextManager[Gateway]] = gateway
    if backend == "docker":
        start = partial(gateways.gateway, "docker")
    with start(image=IMAGE, pool_size="0", **LIMITS) as cold, start(image=IMAGE, pool_size="1", **LIMITS) as warm:
        measured = Measured(cold, warm)
        for line in sys.stdin:
            print(json.dumps(getattr(measured, line.strip())()), flush=True)


@contextmanager
def worker(backend: str) -> Iterator[Callable[[str], float]]:
    """A process that measures one backend: a function that returns the seconds of a measurement."""
    command = [*WORKERS[backend], sys.executable, "-m", "tests.cluster.beside_docker", backend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout

        def measure(what: str) -> float:
            print(what, file=process.stdin, flush=True)
            return float(json.loads(process.stdout.readline()))  # type: ignore[union-attr]

        yield measure
        process.stdin.close()


def main() -> None:
    """Print a table of medians."""
    seconds: dict[str, dict[str, list[float]]] = {what: {backend: [] for backend in WORKERS} for what in TITLES}
    with ExitStack() as stack:
        workers = {backend: stack.enter_context(worker(backend)) for backend in WORKERS}
        for measure in workers.values():
            measure("start")  # the first one of each finds nothing in the machine's caches
        for number in range(ROUNDS):
            for what, found in seconds.items():
                for backend, measure in workers.items():
                    found[backend].append(measure(what))
            say(f"round {number + 1} of {ROUNDS}")
    print(f"{machine()}, {engine()}\n\n| | Docker | Kubernetes | ratio |\n| --- | --- | --- | --- |")
    for what, found in seconds.items():
        docker, kubernetes = (median(found[backend]) for backend in WORKERS)
        print(f"| {TITLES[what]} | {_text(docker)} | {_text(kubernetes)} | {kubernetes / docker:.1f} |")


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds > 1 else f"{1000 * seconds:.1f} ms"


if __name__ == "__main__":
    serve(sys.argv[1]) if sys.argv[1:] else main()
