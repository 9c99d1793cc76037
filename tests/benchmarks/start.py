"""Measures the start of a session, from the pool, cold and step by step, its first plot, and its memory when idle.

One machine, one run: all ways take turns, so read the shares. Run by hand:

    .venv/bin/python tests/benchmarks/start.py [--isolation docker|process] [--image NAME] [--runs N] [--restored]
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
from tempfile import TemporaryDirectory
from typing import Any

import docker
import structlog

sys.path.insert(0, str(Path(__file__).parents[2]))

from sessions.backends.base import KERNEL_IMAGE, Backend, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.profile import GoldenSettings
from sessions.backends.process import ProcessBackend
from sessions.kernels.kernel import Kernel
from sessions.kernels.pool import Pool
from sessions.kernels.readiness import Readiness
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolSettings
from sessions.model.errors import SessionClosed
from sessions.model.kernelspecs import KernelSpecs
from tests.attacks.bench import forget_network
from tests.benchmarks.figures import percentile, say
from tests.fakes import KERNELSPECS, Listener, Seen, until

NETWORK = f"kernel-gateway-start-{os.getpid()}"
PLAIN = Launch(KERNELSPECS.find("python"))
#: the modules that warm kernels import ahead of need
FULL = KernelSpecs(KERNEL_IMAGE / "kernelspecs").find("python")
PRELOAD = FULL.preload
#: first cells that import a lot
FIRST_CELLS = {
    "pandas and a plot": "import pandas, matplotlib.pyplot as plt; plt.plot(pandas.Series([1, 3, 2])); plt.show()",
    "a fit of sklearn": "from sklearn.linear_model import LinearRegression; LinearRegression().fit([[1], [2]], [1, 2])",
}
WITH_ENV = replace(PLAIN, env={"GREETING": "hello"}, cwd="data")
#: seconds until a kernel is at rest after its answer
REST = 2.0
#: the engine's calls during a start, with their names in the table
CALLS = {
    "create_container": "engine: create",
    "start": "engine: start, with gVisor's boot",
    "inspect_container": "engine: inspect",
}
ANSWER = "first answer"
#: cold starts that are requested at once
BURST = 8
#: the kernel's program, which records the time of each step
NOTED = """
import time; notes = [("launcher, interpreter", time.time())]
import sys; image, sys.argv = sys.argv[1], sys.argv[1:]
sys.path.insert(0, image); from python_kernel import bundle; bundle.use(bundle.FILE)
notes.append(("open the bundle", time.time()))
from python_kernel import imports; imports.lean()
import zmq, jupyter_client.session; notes.append(("import zmq, jupyter_client", time.time()))
import IPython.core.interactiveshell; notes.append(("import IPython", time.time()))
from python_kernel import app as kernel; del sys.path[0]
notes.append(("import ipykernel", time.time()))
sys.modules["notes"] = notes
app = kernel.KernelApp.instance(config=kernel.config()); app.initialize(); app.wait()
notes.append(("make the shell, bind", time.time())); app.start()
"""
SHOW = "import json, sys; print(json.dumps(sys.modules['notes']))"

Table = dict[str, list[float]]


async def printed(kernel: Kernel, code: str) -> str:
    """Run a cell and return its text."""
    text, over = [], asyncio.Event()

    def note(message: Any) -> None:
        if message.type == "stream":
            text.append(message.content["text"])
        elif message.content.get("execution_state") == "idle" and message.parent_id == asked:
            over.set()

    kernel.attach(Listener(note))
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    asked = kernel.connection.send("shell", "execute_request", content)
    await over.wait()
    return "".join(text)


def note_calls(table: Table) -> None:
    """Record the durations of the engine's calls from now on, by every client."""
    for name, step in CALLS.items():
        setattr(docker.APIClient, name, _noting(getattr(docker.APIClient, name), table[step]))


def _noting(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def noting(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            seconds.append(time.perf_counter() - begun)

    return noting


async def cold(backend: Backend, table: Table) -> None:
    """Measure one cold start; the engine's calls record their own durations."""
    begun = time.perf_counter()
    kernel = await Kernel.start(backend, PLAIN)
    table["cold start"].append(time.perf_counter() - begun)
    table["container"].append(kernel.started_in)
    await end(backend, kernel)


async def steps(backend: Backend, table: Table) -> None:
    """Measure one cold start of a kernel that records its steps; its clock is the host's."""
    noted = replace(PLAIN.kernelspec, argv=("{python}", "-c", NOTED, "{image}", "-f", "{connection_file}"))
    begun = time.time()
    kernel = await Kernel.start(backend, replace(PLAIN, kernelspec=noted))
    answered, last = time.time(), begun + kernel.started_in
    for step, when in [*json.loads(await printed(kernel, SHOW)), (ANSWER, answered)]:
        table[f"kernel: {step}"].append(when - last)
        last = when
    await end(backend, kernel)


async def warm(backend: Backend, pool: Pool, table: Table) -> None:
    """Measure sessions that get a warm kernel, and the memory of that kernel."""
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
            table["MiB, from the pool"].append(memory(kernel.handle.id))
        await end(backend, kernel)


async def first_cells(backend: Backend, table: Table) -> None:
    """Measure first cells that import a lot, in kernels that have imported it ahead of need and in others."""
    for how, modules in ((", nothing preloaded", ()), (", preloaded", PRELOAD)):
        for name, code in FIRST_CELLS.items():
            kernel = await Kernel.start(backend, PLAIN)
            begun = time.perf_counter()
            for module in modules:
                if problem := await kernel.preloading.load(module):
                    raise ImportError(problem)
            if modules:
                table["preloading"].append(time.perf_counter() - begun)
            await asyncio.sleep(REST)
            if isinstance(backend, DockerBackend):
                table[f"MiB{how}"].append(memory(kernel.handle.id))
            begun = time.perf_counter()
            await printed(kernel, code)
            table[f"first cell: {name}{how}"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            await printed(kernel, code)
            table[f"second cell: {name}{how}"].append(time.perf_counter() - begun)
            await end(backend, kernel)


async def restores(backends: dict[str, Backend], runs: int) -> Table:
    """Measure cold starts with and without a checkpoint, from the request to each result; the ways take turns.

    Args:
        backends: by the way in which they start kernels, each ready.
        runs: number of starts of each way.
    """
    table: Table = defaultdict(list)
    launch = Launch(FULL)
    for _ in range(runs):
        for how, backend in backends.items():
            begun = time.perf_counter()
            kernel = await Kernel.start(backend, launch)
            await printed(kernel, "1")
            table[f"cold, to the first result, {how}"].append(time.perf_counter() - begun)
            for name, code in FIRST_CELLS.items():
                cell = time.perf_counter()
                await printed(kernel, code)
                table[f"then {name}, {how}"].append(time.perf_counter() - cell)
            table[f"cold, to all of these, {how}"].append(time.perf_counter() - begun)
            await end(backend, kernel)
            context = replace(launch, workspace=f"context-{os.getpid()}", shared=True)
            begun = time.perf_counter()
            kernel = await Kernel.start(backend, context)
            await printed(kernel, "1")
            table[f"a sandbox's context, to its first result, {how}"].append(time.perf_counter() - begun)
            await asyncio.sleep(REST)
            table[f"MiB, {how}"].append(memory(kernel.handle.id))
            await end(backend, kernel)
            table[f"refill of one kernel of four, {how}"].append(await refill(backend))
    return table


async def refill(backend: Backend, count: int = 4) -> float:
    """Return the seconds that one warm kernel takes, of some that the pool starts one after the other."""
    starts = StartQueue(backend, await ready(backend), count, lambda *_seconds: None)
    pool = Pool(backend, starts, PoolSettings(PLAIN.limits, count, count, 0.0), clock=time.monotonic, observer=Seen())
    begun = time.perf_counter()
    pool.keep_warm(FULL)
    await until(lambda: pool.depth() == count, 60)
    took = time.perf_counter() - begun
    await pool.close()
    return took / count


async def compare(settings: DockerSettings, runs: int) -> Table:
    """Measure kernels that are restored beside kernels that are started plainly."""
    with TemporaryDirectory() as directory:
        mine = GoldenSettings(Path(directory) / "checkpoints", 1024**3, PLAIN.limits, (FULL,))
        restoring = DockerBackend(replace(settings, golden=mine))
        plain = DockerBackend(replace(settings, instance=f"{settings.instance}-plain"))
        backends: dict[str, Backend] = {"restored": restoring, "started": plain}
        try:
            for backend in backends.values():
                await ready(backend)
                await backend.adopt({}, ())
            await until(lambda: restoring.golden_images.on, 90)
            # The first context of a sandbox lets the gateway make the checkpoint of such contexts.
            await end(restoring, await Kernel.start(restoring, replace(Launch(FULL), workspace="first", shared=True)))
            await asyncio.wait_for(restoring.settled(), 90)
            return await restores(backends, runs)
        finally:
            for backend in backends.values():
                await backend.close()


def memory(container: str) -> float:
    """Return the MiB charged to the container's control group, including the page cache of its files."""
    charged = ControlGroup(container).memory()
    if charged is None:
        raise FileNotFoundError(f"no memory group of container {container[:12]}")
    return charged / 1024**2


async def end(backend: Backend, kernel: Kernel) -> None:
    """End a kernel and delete its workspace."""
    await kernel.kill(SessionClosed())
    await backend.delete_workspace(str(kernel.launch.workspace))


async def burst(backend: Backend, count: int, at_once: int) -> float:
    """Return the seconds until `count` cold starts, requested at once, are finished."""
    starts = StartQueue(backend, await ready(backend), at_once, lambda *_seconds: None)
    begun = time.perf_counter()
    kernels = await asyncio.gather(*(starts.start_kernel(PLAIN) for _ in range(count)))
    took = time.perf_counter() - begun
    await asyncio.gather(*(end(backend, kernel) for kernel in kernels))
    return took


async def ready(backend: Backend) -> Readiness:
    """Return the readiness of a backend, which must be ready."""
    readiness = Readiness(backend)
    await readiness.check()
    readiness.require()
    return readiness


async def measure(backend: Backend, runs: int) -> tuple[Table, dict[int, float]]:
    """Return the seconds of each way and step, run by run, and of a burst, by the number of parallel starts."""
    table: Table = defaultdict(list)
    readiness = await ready(backend)
    say("cold starts, and their steps")
    await cold(backend, defaultdict(list))  # not measured: the first start costs more
    if isinstance(backend, DockerBackend):
        note_calls(table)
    for _ in range(runs):
        await cold(backend, table)
        await steps(backend, table)
    table = defaultdict(list, {step: list(values) for step, values in table.items()})  # without later calls
    say("sessions from the pool")
    starts = StartQueue(backend, readiness, 2, lambda *_seconds: None)
    pool = Pool(backend, starts, PoolSettings(PLAIN.limits, 1, 1), time.monotonic, observer=Seen())
    pool.keep_warm(PLAIN.kernelspec)
    for _ in range(runs):
        await warm(backend, pool, table)
    await pool.close()
    say("first cells that import a lot")
    for _ in range(runs):
        await first_cells(backend, table)
    say("many at once")
    return table, {at_once: await burst(backend, BURST, at_once) for at_once in (1, 2, 4, BURST)}


def row(step: str, values: list[float], whole: float) -> str:
    """Return one line of the table."""
    return (
        f"| {step} | {median(values) * 1e3:.0f} | {percentile(values, 0.99) * 1e3:.0f} | {median(values) / whole:.0%} |"
    )


async def run_compare(image: str, runs: int) -> None:
    """Compare restored kernels with started ones and print the table."""
    table = await compare(DockerSettings("runsc", image, NETWORK, NETWORK), runs)
    held = {name: table.pop(name) for name in list(table) if name.startswith("MiB")}
    print(f"restored and started kernels in turn, {runs} runs each\n\n| | p50 ms | p99 ms | of a plain start |")
    print("|---|---|---|---|")
    for step in sorted(table):
        print(row(step, table[step], median(table[f"{step.rpartition(', ')[0]}, started"])))
    for name, sizes in held.items():
        print(f"\nidle session, {name}: {median(sizes):.0f} ({min(sizes):.0f}-{max(sizes):.0f})")


async def run(isolation: str, image: str, runs: int) -> None:
    """Measure one isolation and print its tables."""
    settings = DockerSettings("runsc", image, NETWORK, NETWORK)
    backend: Backend = DockerBackend(settings) if isolation == "docker" else ProcessBackend()
    try:
        table, bursts = await measure(backend, runs)
    finally:
        await backend.close()
    held = {name: table.pop(name) for name in list(table) if name.startswith("MiB")}
    print(
        f"start of a {isolation} kernel, {runs} runs each\n\n| | p50 ms | p99 ms | of a cold start |\n|---|---|---|---|"
    )
    for step, values in table.items():
        print(row(step, values, median(table["cold start"])))
    print(f"\n{BURST} cold starts that come at once, by how many may start at a time:")
    print(", ".join(f"{at_once}: {seconds:.1f} s" for at_once, seconds in bursts.items()))
    for name, sizes in held.items():
        print(f"\nidle session, {name}: {median(sizes):.0f} ({min(sizes):.0f}-{max(sizes):.0f})")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker", choices=["docker", "process"])
    parser.add_argument("--image", default="kernel-gateway/python:latest")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--restored", action="store_true", help="only compare restored kernels with started ones")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        if not arguments.restored:
            asyncio.run(run(arguments.isolation, arguments.image, arguments.runs))
        if arguments.isolation == "docker":
            asyncio.run(run_compare(arguments.image, arguments.runs))
    finally:
        if arguments.isolation == "docker":
            forget_network(NETWORK)


if __name__ == "__main__":
    main()
