"""Warm kernels in real containers, which are killed and paused from outside the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import docker
import pytest

from sessions.backends.base import KERNEL_IMAGE, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.kernels.kernel import Kernel
from sessions.kernels.pool import Pool
from sessions.kernels.readiness import Readiness
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolSettings
from sessions.model.errors import SessionClosed
from sessions.model.kernelspecs import KernelSpecs
from tests.attacks.bench import forget_network
from tests.benchmarks.start import printed
from tests.fakes import KERNELSPECS, Seen, until

pytestmark = pytest.mark.engine

INSTANCE = f"pool-{os.getpid()}"
NETWORK = f"kernel-gateway-{INSTANCE}"
PLAIN = Launch(KERNELSPECS.find("python"))
#: maximum seconds for a kernel to start
START = 60.0


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    yield
    forget_network(NETWORK)


@pytest.fixture
def engine() -> Iterator[docker.APIClient]:
    with closing(docker.from_env()) as client:
        yield client.api


@pytest.fixture
async def backend(network: None, nothing_left: None) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerSettings("runsc", "kernel-gateway/python:latest", NETWORK, INSTANCE))
    yield backend
    await backend.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def pool(backend: DockerBackend, seen: Seen) -> AsyncIterator[Pool]:
    """A pool with two warm kernels."""
    readiness = Readiness(backend)
    assert await readiness.check()
    starts = StartQueue(backend, readiness, 2, seen.started)
    pool = Pool(backend, starts, PoolSettings(PLAIN.limits, 2, 2), time.monotonic, observer=seen)
    pool.keep_warm(PLAIN.kernelspec)
    await until(lambda: pool.depth() == 2, START)
    yield pool
    await pool.close()


def containers(engine: docker.APIClient) -> list[str]:
    """Return the ids of this pool's containers, oldest first."""
    found = engine.containers(all=True, filters={"label": f"kernel-gateway.instance={INSTANCE}"})
    return [item["Id"] for item in sorted(found, key=lambda item: str(item["Created"]))]


def volumes(engine: docker.APIClient) -> int:
    """Return the number of this pool's workspaces."""
    found = engine.volumes(filters={"label": f"kernel-gateway.instance={INSTANCE}"})["Volumes"]
    return len(found or [])


async def test_a_leased_kernel_has_imported_the_modules_of_its_kernelspec(backend: DockerBackend, seen: Seen) -> None:
    spec = KernelSpecs(KERNEL_IMAGE / "kernelspecs").find("python")
    readiness = Readiness(backend)
    assert await readiness.check()
    pool = Pool(
        backend,
        StartQueue(backend, readiness, 2, seen.started),
        PoolSettings(PLAIN.limits, 1, 1),
        time.monotonic,
        observer=seen,
    )
    pool.keep_warm(spec)
    await until(lambda: pool.depth() == 1, START)
    (waiting,) = pool.warm_kernels()
    await until(lambda: waiting.preloading.tried == set(spec.preload) and not waiting.preloading.under_way, START)
    kernel = await pool.acquire(Launch(spec))
    assert kernel is waiting
    imported = json.loads(await printed(kernel, "import json, sys; print(json.dumps(list(sys.modules)))"))
    assert set(spec.preload) <= set(imported)
    assert json.loads(await printed(kernel, "print(json.dumps([In[1][:6], len(In)]))")) == ["import", 3]
    await end(pool, kernel)
    await pool.close()


async def end(pool: Pool, kernel: Kernel) -> None:
    """End a kernel and delete its workspace."""
    await kernel.kill(SessionClosed())
    await pool.delete_workspace(str(kernel.launch.workspace))


async def test_a_container_killed_from_outside_is_evicted_and_replaced(
    pool: Pool, seen: Seen, engine: docker.APIClient
) -> None:
    victim = containers(engine)[0]
    engine.kill(victim)
    await until(lambda: seen.evictions == 1, START)
    await until(lambda: pool.depth() == 2 and len(containers(engine)) == 2 and volumes(engine) == 2, START)
    assert victim not in containers(engine)
    kernel = await pool.acquire(PLAIN)
    assert kernel.handle.id in containers(engine)
    await end(pool, kernel)


async def test_a_paused_container_is_detected_at_the_lease_and_not_handed_out(
    pool: Pool, seen: Seen, engine: docker.APIClient
) -> None:
    still, well = containers(engine)
    engine.pause(still)
    first = await pool.acquire(PLAIN)
    second = await pool.acquire(PLAIN)
    assert still not in {first.handle.id, second.handle.id}
    assert well in {first.handle.id, second.handle.id}
    assert seen.evictions == 1
    await until(lambda: still not in containers(engine), START)
    await asyncio.gather(end(pool, first), end(pool, second))


@pytest.mark.gate
async def test_no_container_serves_two_sessions(pool: Pool, seen: Seen, engine: docker.APIClient) -> None:
    served: list[str] = []
    for _ in range(2):
        kernels = await asyncio.gather(*(pool.acquire(PLAIN) for _ in range(3)))
        served += [kernel.handle.id for kernel in kernels]
        await asyncio.gather(*(end(pool, kernel) for kernel in kernels))
    assert len(served) == len(set(served)) == 6
    assert True in seen.leases
    await until(lambda: pool.depth() == 2, START)
    assert not set(served) & set(containers(engine))
