"""Measures Jupyter's channels through the gateway, beside a raw client and beside `jupyter_kernel_gateway`.

All ways run the same kernel program; each way has separate kernels, and all take turns: read the ratios, not the
milliseconds. A cell has ended when its reply and its `idle` have arrived. Run by hand:

    .venv/bin/python tests/benchmarks/jupyter.py [--isolation docker|process] [--rounds N] [--nodelay]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from subprocess import DEVNULL

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import percentile, say
from tests.benchmarks.peer import KERNEL, peer, write_kernelspecs
from tests.benchmarks.ways import (
    BYTES,
    CODE,
    LEGACY,
    LINES,
    LINES_BYTES,
    MANY_LINES,
    MUCH_TEXT,
    PER_ROUND,
    TIMEOUT,
    V1,
    WARM_UP,
    Client,
    RawClient,
    Server,
)
from tests.gateways import gateway

KERNELS = 20
#: cells that each kernel runs in a round
CELLS = 10
#: number of rounds between two runs on all kernels
CROWD_EVERY = 3


# -- ways ------------------------------------------------------------------------------------------------------


@dataclass
class Way:
    """One way to kernels, and its measurements."""

    #: one client for each kernel
    clients: list[Client]
    #: seconds of processor time that the gateway has used
    cpu: Callable[[], float] | None = None
    #: seconds by measurement
    seconds: dict[str, list[float]] = field(default_factory=dict)

    async def cells(self) -> None:
        """Run small cells, one by one."""
        before = self.cpu() if self.cpu else 0.0
        for _ in range(PER_ROUND):
            await self._time("cell", self.clients[0].run(CODE), 0)
        if self.cpu:
            self._note("cpu", (self.cpu() - before) / PER_ROUND)

    async def outputs(self) -> None:
        """Run cells with large outputs."""
        await self._time("lines", self.clients[0].run(MANY_LINES), LINES_BYTES)
        await self._time("bytes", self.clients[0].run(MUCH_TEXT), BYTES)

    async def crowd(self) -> None:
        """Run small cells on many kernels at once."""
        await self._time("crowd", self._on_all(CELLS), 0)

    async def warm_up(self) -> None:
        """Run cells that are not measured."""
        await self._on_all(WARM_UP)
        assert await self.clients[0].run(MANY_LINES) == LINES_BYTES

    async def _on_all(self, cells: int) -> int:
        async def run(client: Client) -> int:
            return sum([await client.run(CODE) for _ in range(cells)])

        return sum(await asyncio.gather(*map(run, self.clients)))

    async def _time(self, name: str, run: Awaitable[int], printed: int) -> None:
        begin = time.perf_counter()
        found = await run
        self._note(name, time.perf_counter() - begin)
        assert found == printed, f"{name}: of {printed} bytes {found} have arrived"

    def _note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)


@contextlib.asynccontextmanager
async def raw_way() -> AsyncIterator[Way]:
    """Kernels started by the benchmark, without a gateway."""
    async with contextlib.AsyncExitStack() as stack:
        specs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kgw-raw-")))
        write_kernelspecs(specs)
        yield Way([await stack.enter_async_context(_raw_client(specs)) for _ in range(KERNELS)])


@contextlib.asynccontextmanager
async def _raw_client(specs: Path) -> AsyncIterator[Client]:
    found = KernelSpecManager(kernel_dirs=[str(specs)])
    manager = AsyncKernelManager(kernel_name=KERNEL, kernel_spec_manager=found)
    await manager.start_kernel(stdout=DEVNULL, stderr=DEVNULL)
    client = manager.client()
    client.start_channels(stdin=False, hb=False)
    try:
        await client.wait_for_ready(timeout=TIMEOUT)
        yield RawClient(client)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def way_over(server: Server, framing: str | None) -> Way:
    """Connect to kernels of a gateway, in one framing."""
    return Way(await asyncio.gather(*(server.connect(framing) for _ in range(KERNELS))), server.cpu)


# -- measure and print -----------------------------------------------------------------------------------------


async def measure(ours: Server, other: Server, rounds: int) -> dict[str, Way]:
    """Measure all ways in turn."""
    async with raw_way() as raw:
        say("kernels without a gateway run")
        ways = {"raw": raw}
        for name, server in (("ours", ours), ("JKG", other)):
            for kind, framing in (("v1", V1), ("legacy", LEGACY)):
                ways[f"{name}, {kind}"] = await way_over(server, framing)
                say(f"kernels of {name}, {kind} run")
        for way in ways.values():
            await way.warm_up()
        for number in range(rounds):
            for way in ways.values():
                await way.cells()
            for way in ways.values():
                await way.outputs()
            if number % CROWD_EVERY == CROWD_EVERY - 1:
                for way in ways.values():
                    await way.crowd()
                say(f"round {number + 1} of {rounds}")
        return ways


#: title, measurement, function of its seconds, factor of the unit
ROWS: tuple[tuple[str, str, Callable[[list[float]], float], float], ...] = (
    (f"`{CODE}` p50, ms", "cell", median, 1e3),
    (f"`{CODE}` p99, ms", "cell", lambda seconds: percentile(seconds, 0.99), 1e3),
    ("processor time of the gateway per cell, ms", "cpu", lambda seconds: sum(seconds) / len(seconds), 1e3),
    (f"{LINES:,} lines, ms", "lines", median, 1e3),
    (f"{BYTES // 10**6} MB of text, ms", "bytes", median, 1e3),
    (f"{KERNELS} kernels at once, ms per cell", "crowd", median, 1e3 / KERNELS / CELLS),
)


def table(ways: dict[str, Way]) -> str:
    """Return all rows: each way with its ratio to raw, and ours to the other gateway in the same framing."""
    columns = [*ways, "ours to JKG, v1", "ours to JKG, legacy"]
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for title, name, made, unit in ROWS:
        found = {way: made(known.seconds[name]) for way, known in ways.items() if name in known.seconds}
        cells = [f"{found[way] * unit:.2f}{to_raw(way, found)}" if way in found else "" for way in ways]
        cells += [f"**{found[f'ours, {kind}'] / found[f'JKG, {kind}']:.2f}**" for kind in ("v1", "legacy")]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def to_raw(way: str, found: dict[str, float]) -> str:
    """Return the ratio to the way without a gateway, if that way was measured."""
    return f" ({found[way] / found['raw']:.2f})" if "raw" in found and way != "raw" else ""


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="process")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nodelay", action="store_true", help="as if jupyter_kernel_gateway set TCP_NODELAY")
    arguments = parser.parse_args()
    rounds = max(CROWD_EVERY, arguments.rounds)
    say("starting both gateways")
    enough = gateway(
        arguments.isolation,
        pool_size="0",
        max_sessions_per_tenant=str(2 * KERNELS),
        max_concurrent_per_tenant=str(KERNELS),
    )
    with enough as serving, peer(nodelay=arguments.nodelay) as (url, pid):
        ours = Server(serving.url, serving.process.pid, "python3")
        ways = asyncio.run(measure(ours, Server(url, pid, KERNEL, attempts=3), rounds))
    changed = " with TCP_NODELAY" if arguments.nodelay else ""
    print(f"\n{rounds * PER_ROUND} cells each; JKG: jupyter_kernel_gateway{changed}; in brackets: to raw\n")
    print(table(ways))


if __name__ == "__main__":
    main()
