"""Measures a cell over every way to a kernel, beside raw clients (stock ipykernel, our kernel) and another gateway.

One machine, one run, all ways in turn on separate kernels: read the ratios, not the milliseconds. It is the part `ways`
of `make bench`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient

from sessions.backends.base import Backend, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.process import ProcessBackend
from sessions.kernels.kernel import Kernel
from sessions.model.errors import SessionClosed
from tests.attacks.bench import forget_network
from tests.benchmarks.figures import rounds, say
from tests.benchmarks.peer import KERNEL, STOCK_KERNEL, install, peer
from tests.benchmarks.results import Ways
from tests.benchmarks.serving import IMAGE, serving_on
from tests.benchmarks.ways import (
    BYTES,
    CODE,
    LINES_BYTES,
    MANY_LINES,
    MUCH_TEXT,
    ON_OURS,
    ON_STOCK,
    PER_ROUND,
    PICTURE,
    PICTURE_BYTES,
    PICTURE_MADE,
    REST,
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

NETWORK = f"kernel-gateway-execute-{os.getpid()}"
OURS = Launch(KERNELSPECS.find("python"))
#: a stock kernel, started in the usual way
STOCK = replace(
    OURS, kernelspec=replace(OURS.kernelspec, argv=("{python}", "-m", "ipykernel_launcher", "-f", "{connection_file}"))
)
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
#: the other gateway, which has no sandbox, without and with TCP_NODELAY; and the kernels that it starts
PEERS = {"jupyter_kernel_gateway": False, "jupyter_kernel_gateway with TCP_NODELAY": True}
PEER_KERNELS = {"stock ipykernel": STOCK_KERNEL, "our kernel": KERNEL}


@dataclass
class Found:
    """Clients by way, and what cannot be measured here with the reason."""

    clients: dict[str, Client] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


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
        backend = DockerBackend(DockerSettings(isolation, IMAGE, NETWORK, NETWORK))
    try:
        await backend.prepare()
        yield backend
    finally:
        await backend.close()
        if isolation != "process":
            forget_network(NETWORK)


@contextlib.asynccontextmanager
async def ways_of(isolation: str) -> AsyncIterator[Found]:
    """All ways under one isolation."""
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(backend_of(isolation))
        found = Found()
        ways = found.clients
        ways[ON_STOCK] = await stack.enter_async_context(raw_client(backend, STOCK))
        ways[ON_OURS] = await stack.enter_async_context(raw_client(backend, OURS))
        serving = stack.enter_context(serving_on(isolation, max_output_bytes="32m"))
        ways["HTTP"] = HttpClient(serving, "http")
        ways["WebSocket"] = await StreamClient.connect(serving, "stream")
        ways["Jupyter's channels"] = await Server(serving.url, serving.process.pid, "python3").connect(V1)
        if isolation == "process":
            await add_peers(found, stack)
        yield found


async def add_peers(found: Found, stack: contextlib.AsyncExitStack) -> None:
    """Add the ways over the other gateway."""
    try:
        install()
    except subprocess.CalledProcessError:
        missing = "jupyter_kernel_gateway cannot be installed here"
        found.missing |= {f"{name}, {kernel}": missing for name in PEERS for kernel in PEER_KERNELS}
        return
    for name, nodelay in PEERS.items():
        url, pid = stack.enter_context(peer(nodelay=nodelay))
        for kernel, kernelspec in PEER_KERNELS.items():
            found.clients[f"{name}, {kernel}"] = await Server(url, pid, kernelspec, attempts=3).connect(V1)


async def run(client: Client, what: str, seconds: dict[str, list[float]]) -> None:
    """Time one run, whose whole output must arrive."""
    code, bytes_shown = RUNS[what]
    begun = time.perf_counter()
    found = await client.run(code)
    seconds[what].append(time.perf_counter() - begun)
    assert found == bytes_shown, f"{what}: of {bytes_shown} bytes {found} have arrived"


async def measure(isolation: str, most: int, limit: float) -> Ways:
    """Measure all ways in turn.

    Args:
        isolation: isolation of all kernels.
        most: number of rounds.
        limit: seconds after which no further round begins.
    """
    say(f"{isolation}: starting kernels and gateways")
    async with ways_of(isolation) as found:
        seconds: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in found.clients}
        ways = [(client, seconds[way]) for way, client in found.clients.items()]
        for client, _ in ways:
            await client.run(PICTURE_MADE)
            for _ in range(WARM_UP):
                await client.run(CODE)
        for number in rounds(f"ways, {isolation}", most, limit):
            for client, noted in ways:
                for _ in range(PER_ROUND):
                    await run(client, "cell", noted)
            await asyncio.sleep(REST)
            for client, noted in ways:
                await run(client, "rested", noted)
            if number % LARGE_EVERY == 0:
                for client, noted in ways:
                    for what in ("lines", "text", "picture"):
                        await run(client, what, noted)
    return seconds | found.missing
