"""Measures a cell over every way to a kernel, beside raw clients (stock ipykernel, our kernel) and another gateway.

One machine, one run, all ways in turn on separate kernels: read the ratios, not the milliseconds. Run by
`make bench`, or

    .venv/bin/python tests/benchmarks/execute.py [--isolation process|runc|runsc ...] [--rounds N] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import logging
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import structlog
from jupyter_client.asynchronous.client import AsyncKernelClient

sys.path.insert(0, str(Path(__file__).parents[2]))

from sessions.backends.base import Backend, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.process import ProcessBackend
from sessions.errors import SessionClosed
from sessions.kernels.kernel import Kernel
from tests.attacks.bench import forget_network
from tests.benchmarks.figures import engine, machine, percentile, say, versions
from tests.benchmarks.peer import KERNEL, STOCK_KERNEL, peer
from tests.benchmarks.ways import (
    BYTES,
    CODE,
    LINES,
    LINES_BYTES,
    MANY_LINES,
    MUCH_TEXT,
    PER_ROUND,
    PICTURE,
    PICTURE_BYTES,
    PICTURE_MADE,
    TIMEOUT,
    V1,
    WARM_UP,
    Client,
    HttpClient,
    RawClient,
    Server,
    StreamClient,
)
from tests.fakes import KERNELSPECS
from tests.gateways import gateway

ROOT = Path(__file__).parents[2]
NETWORK = f"kernel-gateway-execute-{os.getpid()}"
ISOLATIONS = ("process", "runc", "runsc")
OURS = Launch(KERNELSPECS.find("python"))
#: a stock kernel, started in the usual way
STOCK = replace(
    OURS, kernelspec=replace(OURS.kernelspec, argv=("{python}", "-m", "ipykernel_launcher", "-f", "{connection_file}"))
)
ON_STOCK, ON_OURS = "raw client, stock ipykernel", "raw client, our kernel"
#: the measurements: the code, and the bytes that it shows
RUNS = {
    "cell": (CODE, 0),
    "rested": (CODE, 0),
    "lines": (MANY_LINES, LINES_BYTES),
    "text": (MUCH_TEXT, BYTES),
    "picture": (PICTURE, PICTURE_BYTES),
}
#: number of rounds between two runs of the large ones
LARGE_EVERY = 3
#: idle seconds before a cell, as between the cells of an agent
REST = 1.0

Seconds = dict[str, dict[str, list[float]]]


@contextlib.asynccontextmanager
async def raw_client(backend: Backend, launch: Launch) -> AsyncIterator[Client]:
    """A client of jupyter_client on a separate kernel."""
    kernel = await Kernel.start(backend, launch)
    kernel.connection.close()  # else the kernel would have two readers
    client = AsyncKernelClient()
    info: Any = kernel.handle.connection_info.file()
    client.load_connection_info(info)
    client.start_channels(stdin=False, hb=False)
    try:
        await client.wait_for_ready(timeout=TIMEOUT)
        yield RawClient(client)
    finally:
        client.stop_channels()
        await kernel.kill(SessionClosed())
        await backend.delete_workspace(str(kernel.launch.workspace))


@contextlib.asynccontextmanager
async def backend_of(isolation: str) -> AsyncIterator[Backend]:
    """The backend of the raw clients' kernels, with the same isolation as the gateway's kernels."""
    if isolation == "process":
        backend: Backend = ProcessBackend()
    else:
        backend = DockerBackend(DockerSettings(isolation, "kernel-gateway/python:latest", NETWORK, NETWORK))
    try:
        await backend.prepare()
        yield backend
    finally:
        await backend.close()
        if isolation != "process":
            forget_network(NETWORK)


@contextlib.asynccontextmanager
async def ways_of(isolation: str) -> AsyncIterator[dict[str, Client]]:
    """All ways under one isolation."""
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(backend_of(isolation))
        ways = {
            ON_STOCK: await stack.enter_async_context(raw_client(backend, STOCK)),
            ON_OURS: await stack.enter_async_context(raw_client(backend, OURS)),
        }
        kind, runtime = ("process", "runsc") if isolation == "process" else ("docker", isolation)
        serving = stack.enter_context(gateway(kind, pool_size="0", max_output_bytes="32m", runtime=runtime))
        ways["HTTP"] = HttpClient(serving, "http")
        ways["WebSocket"] = await StreamClient.connect(serving, "stream")
        ways["Jupyter's channels"] = await Server(serving.url, serving.process.pid, "python3").connect(V1)
        if isolation == "process":  # jupyter_kernel_gateway has no sandbox
            for name, nodelay in (("jupyter_kernel_gateway", False), ("the same with TCP_NODELAY", True)):
                url, pid = stack.enter_context(peer(nodelay=nodelay))
                ways[f"{name}, stock ipykernel"] = await Server(url, pid, STOCK_KERNEL, attempts=3).connect(V1)
                ways[f"{name}, our kernel"] = await Server(url, pid, KERNEL, attempts=3).connect(V1)
        yield ways


async def run(way: str, client: Client, what: str, seconds: Seconds) -> None:
    """Time one run, whose whole output must arrive."""
    code, bytes_shown = RUNS[what]
    begun = time.perf_counter()
    found = await client.run(code)
    seconds[way][what].append(time.perf_counter() - begun)
    assert found == bytes_shown, f"{way}, {what}: of {bytes_shown} bytes {found} have arrived"


async def measure(isolation: str, rounds: int) -> Seconds:
    """Return the seconds by way and measurement; the ways take turns."""
    seconds: Seconds = defaultdict(lambda: defaultdict(list))
    say(f"{isolation}: starting kernels and gateways")
    async with ways_of(isolation) as ways:
        for client in ways.values():
            await client.run(PICTURE_MADE)
            for _ in range(WARM_UP):
                await client.run(CODE)
        for number in range(rounds):
            for way, client in ways.items():
                for _ in range(PER_ROUND):
                    await run(way, client, "cell", seconds)
            await asyncio.sleep(REST)
            for way, client in ways.items():
                await run(way, client, "rested", seconds)
            if number % LARGE_EVERY == 0:
                for way, client in ways.items():
                    for what in ("lines", "text", "picture"):
                        await run(way, client, what, seconds)
            say(f"{isolation}: round {number + 1} of {rounds}")
    return seconds


def row(isolation: str, way: str, seconds: Seconds) -> str:
    """Return one line of the table."""
    cell = seconds[way]["cell"]
    p50 = median(cell)
    figures = [f"{p50 * 1e3:.2f}", f"{percentile(cell, 0.99) * 1e3:.1f}"]
    figures += [f"{p50 / median(seconds[base]['cell']):.2f}" for base in (ON_STOCK, ON_OURS)]
    rested = median(seconds[way]["rested"])
    figures.append(f"{rested * 1e3:.0f} ({rested / median(seconds[ON_STOCK]['rested']):.2f})")
    for what in ("lines", "text", "picture"):
        took = median(seconds[way][what])
        figures.append(f"{took * 1e3:.0f} ({took / median(seconds[ON_OURS][what]):.2f})")
    return f"| {isolation} | {way} | " + " | ".join(figures) + " |"


def table(found: dict[str, Seconds], rounds: int) -> str:
    """Return all figures as Markdown."""
    titles = (
        f"`{CODE}` p50, ms|p99, ms|p50 to raw, stock|to raw, ours|after {REST:.0f} s of rest, ms"
        f"|{LINES:,} lines, ms|10 MB of text|5 MB picture"
    )
    lines = [f"| | | {titles.replace('|', ' | ')} |", "|---" * 10 + "|"]
    lines += [row(isolation, way, seconds) for isolation, seconds in found.items() for way in seconds]
    what = f"medians of {rounds * PER_ROUND} cells and {-(-rounds // LARGE_EVERY)} large outputs each"
    bases = "a raw client on our kernel, after a rest to one on a stock ipykernel"
    parts = versions("ipykernel", "jupyter_client", "pyzmq", "tornado")
    lines += [
        f"\n{dt.datetime.now(dt.UTC).date()}, `make bench`: {what}; in brackets: to {bases}.",
        f"{machine()}; {parts}, {engine()}.",
    ]
    return "\n".join(lines)


def write(text: str) -> None:
    """Write the table into the README."""
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = re.sub(r"(<!-- bench -->\n).*?(<!-- /bench -->)", rf"\g<1>\n{text}\n\n\g<2>", old, flags=re.DOTALL)
    assert new != old
    readme.write_text(new)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", action="append", choices=ISOLATIONS, help="by default all, one after the other")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    isolations = arguments.isolation or ISOLATIONS
    found = {isolation: asyncio.run(measure(isolation, arguments.rounds)) for isolation in isolations}
    text = table(found, arguments.rounds)
    print(text)
    if arguments.write:
        write(text)


if __name__ == "__main__":
    main()
