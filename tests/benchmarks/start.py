"""What the start of a session costs: from the pool, cold, and step by step; and what a session holds while it is idle.

One machine, one run: all ways take turns, so read the shares. Run by `make bench`, or

    .venv/bin/python tests/benchmarks/start.py [--isolation docker|process] [--image NAME] [--runs N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).parents[2]))

from sessions.backends.base import Backend, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.process import ProcessBackend
from sessions.errors import SessionClosed
from sessions.kernel import Kernel
from sessions.pool import Pool, Stock
from sessions.readiness import Readiness
from sessions.starts import Starts
from tests.attacks.bench import forget_network
from tests.benchmarks.figures import percentile, say
from tests.fakes import KERNELSPECS, Seen, until

NETWORK = f"kernel-gateway-start-{os.getpid()}"
PLAIN = Launch(KERNELSPECS.find("python"))
WITH_ENV = replace(PLAIN, env={"GREETING": "hello"}, cwd="data")
#: seconds in which a kernel that has answered comes to rest
REST = 2.0
#: the engine's calls that a start is made of
CALLS = {
    "create_container": "engine: create",
    "start": "engine: start, with gVisor's boot",
    "inspect_container": "engine: inspect",
}
ANSWER = "first answer"
#: cold starts that come at once
BURST = 8
#: the kernel's own program, which notes when it comes where
NOTED = """
import time; notes = [("launcher, interpreter", time.time())]
import sys; image, sys.argv = sys.argv[1], sys.argv[1:]
sys.path.insert(0, image); from python_kernel import bundle; bundle.use()
notes.append(("open the bundle", time.time()))
from python_kernel import imports; imports.lean()
import zmq, jupyter_client.session; notes.append(("import zmq, jupyter_client", time.time()))
import IPython.core.interactiveshell; notes.append(("import IPython", time.time()))
from python_kernel import app as kernel; del sys.path[0]
notes.append(("import ipykernel", time.time()))
sys.modules["notes"] = notes
app = kernel.KernelApp.instance(config=kernel.config()); app.initialize()
notes.append(("bind, make the shell", time.time())); app.start()
"""
SHOW = "import json, sys; print(json.dumps(sys.modules['notes']))"

Table = dict[str, list[float]]


async def printed(kernel: Kernel, code: str) -> str:
    """What a cell prints."""
    text, over = [], asyncio.Event()

    def note(message: Any) -> None:
        if message.type == "stream":
            text.append(message.content["text"])
        elif message.content.get("execution_state") == "idle" and message.parent_id == asked:
            over.set()

    kernel.connection.on_message = note
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    asked = kernel.connection.send("shell", "execute_request", content)
    await over.wait()
    return "".join(text)


def note_calls(backend: DockerBackend, table: Table) -> None:
    """Note from now on how long the engine's calls take."""
    api: Any = backend._engine.api
    for name, step in CALLS.items():
        setattr(api, name, _noting(getattr(api, name), table[step]))


def _noting(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def noting(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            seconds.append(time.perf_counter() - begun)

    return noting


async def cold(backend: Backend, table: Table) -> None:
    """One cold start; what the engine's calls took of it is noted by themselves."""
    begun = time.perf_counter()
    kernel = await Kernel.start(backend, PLAIN)
    table["cold start"].append(time.perf_counter() - begun)
    table["container"].append(kernel.started_in)
    await end(backend, kernel)


async def steps(backend: Backend, table: Table) -> None:
    """One cold start of a kernel that notes its way; its clock is the host's."""
    noted = replace(PLAIN.kernelspec, argv=("{python}", "-c", NOTED, "{image}", "-f", "{connection_file}"))
    begun = time.time()
    kernel = await Kernel.start(backend, replace(PLAIN, kernelspec=noted))
    answered, last = time.time(), begun + kernel.started_in
    for step, when in [*json.loads(await printed(kernel, SHOW)), (ANSWER, answered)]:
        table[f"kernel: {step}"].append(when - last)
        last = when
    await end(backend, kernel)


async def warm(backend: Backend, pool: Pool, table: Table) -> None:
    """Sessions that find a warm kernel, and what it then holds."""
    for name, launch in (("session from the pool", PLAIN), ("the same, with env and cwd", WITH_ENV)):
        await until(lambda: pool.depth() == 1, 60)
        await asyncio.sleep(REST)
        begun = time.perf_counter()
        kernel = await pool.acquire(launch)
        table[name].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await printed(kernel, "1")
        table["its first cell"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await printed(kernel, "1")
        table["its second cell"].append(time.perf_counter() - begun)
        if isinstance(backend, DockerBackend):
            await asyncio.sleep(REST)
            table["MiB"].append(memory(kernel.handle.id))
        await end(backend, kernel)


def memory(container: str) -> float:
    """MiB that the container's group is charged with, the page cache of its files included."""
    for path in (
        f"/sys/fs/cgroup/memory/docker/{container}/memory.usage_in_bytes",
        f"/sys/fs/cgroup/system.slice/docker-{container}.scope/memory.current",
        f"/sys/fs/cgroup/docker/{container}/memory.current",
    ):
        if Path(path).exists():
            return int(Path(path).read_text()) / 1024**2
    raise FileNotFoundError(f"no memory group of container {container[:12]}")


async def end(backend: Backend, kernel: Kernel) -> None:
    """End it with all it had."""
    await kernel.kill(SessionClosed())
    await backend.delete_workspace(str(kernel.launch.workspace))


async def burst(backend: Backend, count: int, at_once: int) -> float:
    """Seconds until so many cold starts are through that came at once."""
    starts = Starts(backend, await ready(backend), at_once, lambda *_seconds: None)
    begun = time.perf_counter()
    kernels = await asyncio.gather(*(starts.kernel(PLAIN) for _ in range(count)))
    took = time.perf_counter() - begun
    await asyncio.gather(*(end(backend, kernel) for kernel in kernels))
    return took


async def ready(backend: Backend) -> Readiness:
    """Readiness of a backend that is."""
    readiness = Readiness(backend)
    await readiness.check()
    readiness.require()
    return readiness


async def measure(backend: Backend, runs: int) -> tuple[Table, dict[int, float]]:
    """Seconds of each way and step, run by run; and of a burst, by how many may start at a time."""
    table: Table = defaultdict(list)
    readiness = await ready(backend)
    say("cold starts, and their steps")
    await cold(backend, defaultdict(list))  # what only the first one costs
    if isinstance(backend, DockerBackend):
        note_calls(backend, table)
    for _ in range(runs):
        await cold(backend, table)
        await steps(backend, table)
    table = defaultdict(list, {step: list(values) for step, values in table.items()})  # no engine's calls any more
    say("sessions from the pool")
    starts = Starts(backend, readiness, 2, lambda *_seconds: None)
    pool = Pool(backend, starts, Stock(PLAIN.limits, 1, 1), time.monotonic, Seen())
    pool.keep_warm(PLAIN.kernelspec)
    for _ in range(runs):
        await warm(backend, pool, table)
    await pool.close()
    say("many at once")
    return table, {at_once: await burst(backend, BURST, at_once) for at_once in (1, 2, 4, BURST)}


def row(step: str, values: list[float], whole: float) -> str:
    """One line of the table."""
    return (
        f"| {step} | {median(values) * 1e3:.0f} | {percentile(values, 0.99) * 1e3:.0f} | {median(values) / whole:.0%} |"
    )


async def run(isolation: str, image: str, runs: int) -> None:
    """Measure and print."""
    settings = DockerSettings("runsc", image, NETWORK, NETWORK)
    backend: Backend = DockerBackend(settings) if isolation == "docker" else ProcessBackend()
    try:
        table, bursts = await measure(backend, runs)
    finally:
        await backend.close()
    held = table.pop("MiB", [])
    print(
        f"start of a {isolation} kernel, {runs} runs each\n\n| | p50 ms | p99 ms | of a cold start |\n|---|---|---|---|"
    )
    for step, values in table.items():
        print(row(step, values, median(table["cold start"])))
    print(f"\n{BURST} cold starts that come at once, by how many may start at a time:")
    print(", ".join(f"{at_once}: {seconds:.1f} s" for at_once, seconds in bursts.items()))
    if held:
        print(f"\nmemory of an idle session: {median(held):.0f} MiB ({min(held):.0f}-{max(held):.0f})")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker", choices=["docker", "process"])
    parser.add_argument("--image", default="kernel-gateway/python:latest")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        asyncio.run(run(arguments.isolation, arguments.image, arguments.runs))
    finally:
        if arguments.isolation == "docker":
            forget_network(NETWORK)


if __name__ == "__main__":
    main()
