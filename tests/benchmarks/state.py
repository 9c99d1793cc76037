"""Measures sleep and checkpoints, each with its bytes on disk. Nothing of a sleeping kernel runs.

A checkpoint is what each cell of a session with automatic ones waits for; a return ends with the first cell's answer.

One machine, one run: read the ratios. Run by

    .venv/bin/python tests/benchmarks/state.py [--runs N]
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from sessions.backends.base import Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.profile import GoldenSettings, SleepSettings
from sessions.checkpoints.writing import KernelMemory
from sessions.kernels.kernel import Kernel
from sessions.kernels.pool import Pool
from sessions.kernels.readiness import Readiness
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolSettings
from sessions.model.checkpoint import CannotWake
from sessions.model.errors import SessionClosed, StartFailed
from sessions.model.values import Limits
from tests.fakes import KERNELSPECS, Clock, Seen, until
from tests.sessions.backends.test_contract import execute

MIB = 1024**2
LAUNCH = Launch(KERNELSPECS.find("python"), Limits(memory=1024 * MIB))
HEAPS = (0, 100, 400)


async def measure(backend: DockerBackend, runs: int) -> None:
    """Print one line for each size of heap."""
    readiness = Readiness(backend)
    if not await readiness.check():
        raise SystemExit(f"not ready: {readiness.trouble}")
    starts = StartQueue(backend, readiness, 2, lambda _container, _ready: None)
    pool = Pool(backend, starts, PoolSettings(LAUNCH.limits, 0, 0), Clock(), observer=Seen())
    kernel_memory = KernelMemory(backend, starts, pool)
    await backend.adopt({}, ())  # there is nothing left of an earlier gateway: it begins to make checkpoints
    await until(lambda: kernel_memory.ability.on)
    print(" heap MB  checkpoint s  return s  disk MB  sleep s   wake s  disk MB  not woken")
    for heap in HEAPS:
        kept, returned, slept, woken, both, disk, failed = [], [], [], [], 0, 0, 0
        for _ in range(runs):
            kernel = await Kernel.start(backend, LAUNCH)
            await execute(kernel, f"import os; kept = os.urandom({heap} * 1024**2)")
            begun = time.monotonic()
            copy = await kernel_memory.copy(kernel)
            kept.append(time.monotonic() - begun)
            both = copy.size
            begun = time.monotonic()
            other = await kernel_memory.restore(copy, kernel.launch, kernel.handle.connection_info)
            await execute(other, "len(kept)")
            returned.append(time.monotonic() - begun)
            await other.kill(SessionClosed())
            await kernel_memory.discard(copy)
            await backend.delete_workspace(str(other.launch.workspace))
            begun = time.monotonic()
            image = await kernel_memory.take(kernel)
            await kernel.kill(SessionClosed())
            slept.append(time.monotonic() - begun)
            disk = image.size
            begun = time.monotonic()
            try:
                awake = await kernel_memory.wake(image, kernel.launch, kernel.handle.connection_info)
            except (CannotWake, StartFailed):
                failed += 1
            else:
                await execute(awake, "len(kept)")
                woken.append(time.monotonic() - begun)
                await awake.kill(SessionClosed())
            await kernel_memory.discard(image)
            await backend.delete_workspace(str(kernel.launch.workspace))
        wake = f"{median(woken):.2f}" if woken else "-"
        copies = f"{median(kept):13.2f} {median(returned):9.2f} {both / MIB:8.0f}"
        print(f"{heap:8} {copies} {median(slept):8.2f} {wake:>8} {disk / MIB:8.0f} {failed:>4} of {runs}")


async def main(runs: int) -> None:
    """Measure with a backend of this run alone."""
    with TemporaryDirectory() as directory:
        place, key = Path(directory), secrets.token_bytes(32)
        settings = DockerSettings("runsc", "kernel-gateway/python:latest", "kernel-gateway-bench", "bench-state")
        golden = GoldenSettings(place / "checkpoints", 1024 * MIB, Limits(), (LAUNCH.kernelspec,))
        sleep = SleepSettings(place / "asleep", lambda: key)
        backend = DockerBackend(replace(settings, golden=golden, sleep=sleep))
        try:
            await measure(backend, runs)
        finally:
            await backend.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    asyncio.run(main(parser.parse_args().runs))
