"""Warm kernels import modules ahead of need, and no session waits longer or sees more than without that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.kernels import preloading
from sessions.kernels.kernel import Kernel
from sessions.model.errors import SessionClosed
from sessions.model.kernelspecs import PRELOAD_MEMORY
from sessions.model.tasks import spawn
from sessions.model.values import Limits, SessionSpec
from tests.fakes import PYTHON, FakeBackend, FakeKernel, Listener, World, until, world_over

MODULES = ["one", "two", "three"]
SPEC = replace(PYTHON, preload=tuple(MODULES))


class Imports:
    """How the kernels import: each import waits for `going`, and some fail, or end their kernel."""

    def __init__(self, *, broken: str = "", deadly: str = "") -> None:
        self.broken = broken
        self.deadly = deadly
        self.going = asyncio.Event()
        self.going.set()

    async def __call__(self, kernel: FakeKernel, module: str) -> str:
        await self.going.wait()
        if module == self.deadly:
            kernel.dies(139)
            await asyncio.sleep(60)
        return "ImportError: no such module" if module == self.broken else ""


@asynccontextmanager
async def preloading_world(backend: FakeBackend, imports: Imports, **settings: int) -> AsyncIterator[World]:
    backend.behaviour.imports = imports
    async with world_over(backend, **settings) as world:
        world.pool.keep_warm(SPEC)
        yield world


async def dismiss(world: World, kernel: Kernel) -> None:
    """End a kernel that no session has."""
    await kernel.kill(SessionClosed())
    await world.pool.delete_workspace(str(kernel.launch.workspace))


def done(backend: FakeBackend) -> bool:
    """Return whether all kernels have begun all imports."""
    return all(kernel.preloaded == MODULES for kernel in backend.started)


async def test_a_warm_kernel_imports_the_modules_of_its_kernelspec_in_order(backend: FakeBackend) -> None:
    async with preloading_world(backend, Imports(), pool_size=1):
        await until(lambda: backend.started and done(backend))
        assert backend.kernel.executed == []


async def test_a_kernel_that_is_started_for_a_session_imports_nothing_ahead(backend: FakeBackend) -> None:
    async with world_over(backend) as world:
        kernel = await world.pool.acquire(Launch(SPEC))
        assert backend.kernel.preloaded == []
        await dismiss(world, kernel)


async def test_a_session_waits_for_the_import_under_way_and_for_no_other(backend: FakeBackend) -> None:
    imports = Imports()
    imports.going.clear()
    async with preloading_world(backend, imports, pool_size=1) as world:
        await until(lambda: world.pool.depth() == 1 and backend.kernel.preloaded == ["one"])
        first = backend.kernel
        leasing = spawn(world.pool.acquire(Launch(SPEC)), "lease")
        await asyncio.sleep(0.02)
        assert not leasing.done()
        imports.going.set()
        kernel = await leasing
        assert kernel.handle is first
        await until(lambda: len(backend.started) == 2 and backend.kernel.preloaded == MODULES)
        assert first.preloaded == ["one"]
        await dismiss(world, kernel)


async def test_a_kernel_that_is_not_importing_is_leased_first(backend: FakeBackend) -> None:
    imports = Imports()
    imports.going.clear()
    async with preloading_world(backend, imports, pool_size=2) as world:
        await until(lambda: world.pool.depth() == 2 and backend.started[0].preloaded == ["one"])
        kernel = await world.pool.acquire(Launch(SPEC))
        assert kernel.handle is backend.started[1]
        assert backend.started[0].alive
        imports.going.set()
        await dismiss(world, kernel)


async def test_missing_kernels_are_started_before_the_others_import(backend: FakeBackend) -> None:
    async with preloading_world(backend, Imports(), pool_size=3) as world:
        backend.gate.clear()
        await asyncio.sleep(0.02)
        backend.gate.set()
        await until(lambda: world.pool.depth() == 3)
        assert [kernel.preloaded for kernel in backend.started[1:]] == [[], []]
        await until(lambda: done(backend))


async def test_a_module_that_cannot_be_imported_is_logged_once_and_costs_no_kernel(backend: FakeBackend) -> None:
    with capture_logs() as logs:
        async with preloading_world(backend, Imports(broken="two"), pool_size=2) as world:
            await until(lambda: len(backend.started) == 2 and backend.kernel.preloaded == ["one", "three"])
            assert backend.started[0].preloaded == MODULES
            assert world.pool.depth() == 2
    (warning,) = (line for line in logs if line["log_level"] == "warning")
    assert warning == {
        "event": "a module was not preloaded",
        "log_level": "warning",
        "language": "python",
        "module": "two",
        "reason": "ImportError: no such module",
    }


async def test_a_module_that_ends_two_kernels_is_not_tried_again(backend: FakeBackend) -> None:
    async with preloading_world(backend, Imports(deadly="two"), pool_size=2, pool_max=2) as world:
        await until(lambda: world.seen.evictions == 2)
        world.clock.passes(60)
        world.pool.tend()
        await until(lambda: world.pool.depth() == 2)
        await until(lambda: all(kernel.preloaded == ["one", "three"] for kernel in backend.started if kernel.alive))
        assert world.seen.evictions == 2


async def test_a_kernel_whose_import_takes_too_long_is_ended_and_not_leased(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloading, "TIMEOUT", 0.05)
    imports = Imports()
    imports.going.clear()
    async with preloading_world(backend, imports, pool_size=1) as world:
        await until(lambda: world.pool.depth() == 1 and backend.kernel.preloaded == ["one"])
        first = backend.kernel
        end = first.kill

        async def end_slowly() -> None:
            await asyncio.sleep(0.05)  # as with an engine: meanwhile the kernel answers on control
            await end()

        monkeypatch.setattr(first, "kill", end_slowly)
        leasing = spawn(world.pool.acquire(Launch(SPEC)), "lease")
        await until(lambda: not first.alive)
        imports.going.set()
        kernel = await leasing
        assert kernel.handle is not first
        await dismiss(world, kernel)


async def test_kernels_with_little_memory_import_nothing_ahead(backend: FakeBackend) -> None:
    backend.behaviour.imports = Imports()
    small = SessionSpec(limits=Limits(memory=PRELOAD_MEMORY - 1))
    async with world_over(backend, pool_size=1, defaults=small) as world:
        world.pool.keep_warm(SPEC)
        await until(lambda: world.pool.depth() == 1)
        await asyncio.sleep(0.02)
        assert backend.kernel.preloaded == []


async def test_nothing_that_an_import_says_reaches_a_listener(backend: FakeBackend) -> None:
    async with world_over(backend) as world:
        kernel = await world.pool.acquire(Launch(SPEC))
        heard: list[object] = []
        kernel.attach(Listener(lambda message: heard.append(message.parent["msg_type"])))
        await kernel.preloading.load("one")
        await kernel.connection.request("shell", "kernel_info_request", {})
        await until(lambda: len(heard) >= 3)
        assert set(heard) == {"kernel_info_request"}
        await dismiss(world, kernel)
