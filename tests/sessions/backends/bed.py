"""A backend whose kernels can be written to disk, and kernels with state of many kinds."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import docker

from sessions.backends.base import Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.golden.workshop import Workshop
from sessions.backends.docker.profile import DISKS_LABEL, GoldenSettings, SleepSettings
from sessions.checkpoints.writing import KernelMemory
from sessions.kernels.kernel import Kernel
from sessions.kernels.pool import Pool
from sessions.kernels.readiness import Readiness
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolSettings
from sessions.model.checkpoint import SleepImage
from sessions.model.errors import SessionClosed
from sessions.model.values import Limits
from tests.fakes import KERNELSPECS, Clock, Seen, until
from tests.sessions.backends.test_contract import execute

INSTANCE = f"sleep-{os.getpid()}"
NETWORK = f"kernel-gateway-{INSTANCE}"
MIB = 1024**2
KEY = secrets.token_bytes(32)
PYTHON = Launch(KERNELSPECS.find("python"))
JAVASCRIPT = Launch(KERNELSPECS.find("javascript"))


class Bed:
    """A backend whose kernels can sleep."""

    def __init__(self, place: Path) -> None:
        self.images = place / "asleep"
        checkpoints = GoldenSettings(place / "checkpoints", 1024 * MIB, Limits(), (PYTHON.kernelspec,))
        sleep = SleepSettings(self.images, lambda: KEY)
        settings = DockerSettings("runsc", "kernel-gateway/python:latest", NETWORK, INSTANCE)
        self.backend = DockerBackend(replace(settings, golden=checkpoints, sleep=sleep))
        self.readiness = Readiness(self.backend)
        starts = StartQueue(self.backend, self.readiness, 4, lambda _container, _ready: None)
        pool = Pool(self.backend, starts, PoolSettings(Limits(), 0, 0), Clock(), observer=Seen())
        self.kernel_memory = KernelMemory(self.backend, starts, pool)

    async def ready(self) -> None:
        """Wait until Python's kernels are restored, as in a gateway: not all that start plainly can sleep."""
        assert await self.readiness.check()
        await self.backend.adopt({}, ())
        await until(lambda: self.backend.sleep.ability.on)

    async def asleep(self, kernel: Kernel) -> SleepImage:
        """Let a kernel fall asleep, to its end."""
        image = await self.kernel_memory.take(kernel)
        await kernel.kill(SessionClosed())
        return image

    async def woken(self, kernel: Kernel, image: SleepImage) -> Kernel:
        """Wake it, and delete its image."""
        awake = await self.kernel_memory.wake(image, kernel.launch, kernel.handle.connection_info)
        await self.kernel_memory.discard(image)
        return awake

    def disks(self) -> set[str]:
        """Return the names of the image files of workspaces, which are on this machine."""
        with closing(docker.from_env()) as client:
            (images,) = client.volumes.list(filters={"label": f"{DISKS_LABEL}={INSTANCE}"})
        return {path.stem for path in Path(images.attrs["Mountpoint"]).glob("*.img")}

    def files(self) -> list[Path]:
        """Return everything on disk."""
        return [path for path in self.images.rglob("*") if path.is_file()] if self.images.is_dir() else []


@asynccontextmanager
async def workshop_for(settings: DockerSettings) -> AsyncIterator[Workshop]:
    """A workshop beside that of a backend, with the same golden images."""
    assert settings.golden is not None
    engine = Engine()
    disks = Disks(engine, settings)
    yield Workshop(engine, disks, settings, settings.golden, SleepImages(engine, disks, settings))
    await asyncio.to_thread(disks.close)
    await engine.close()


async def said(kernel: Kernel, code: str) -> str:
    status, printed = await execute(kernel, code)
    assert status == "ok", (status, printed)
    return printed.strip()


#: state of many kinds
BEFORE = """
import random, sqlite3, subprocess, sys, threading, time
import numpy as np, pandas as pd
from sklearn.linear_model import LinearRegression
frame = pd.DataFrame({"x": np.arange(3_300_000), "y": np.linspace(0, 1, 3_300_000)})  # 50 MiB
model = LinearRegression().fit([[0], [1]], [1, 3])
notes = open("notes.txt", "w+"); notes.write("first\\n"); notes.flush()
def numbers():
    for number in range(10): yield number
flight = numbers(); next(flight); next(flight)
chance, expected = random.Random(7), random.Random(7); chance.random(); expected.random()
np.random.seed(7); drawn = np.random.RandomState(7)
ticks = 0
def tick():
    global ticks
    while True: ticks += 1; time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
table = sqlite3.connect("table.db"); table.execute("create table t (x)"); table.commit()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print("made")
"""
AFTER = """
before = ticks; time.sleep(0.3)
child.stdin.write("echo\\n"); child.stdin.flush()
table.execute("insert into t values (1)"); table.commit()
notes.write("second\\n"); notes.seek(0)
print(int(frame.x.sum()), next(flight), ticks > before,
      chance.random() == expected.random() and np.random.random() == drawn.random_sample(),
      round(model.predict([[2]])[0]), notes.read().split(), child.stdout.readline().strip(),
      table.execute("select count(*) from t").fetchone()[0])
"""
SURVIVED = "5444998350000 2 True True 5 ['first', 'second'] echo 1"
