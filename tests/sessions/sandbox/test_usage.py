"""What a sandbox uses: figures of all its containers, also when one ends meanwhile or none is measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sessions.model.errors import SessionClosed
from sessions.model.tasks import spawn
from sessions.model.values import Limits, SandboxSpec, SessionKey
from sessions.sandbox import usage
from sessions.sandbox.sandbox import Sandbox
from sessions.sandbox.usage import measure
from tests.fakes import MEMORY, World

LIMITS = Limits(memory=256 * 1024**2, cpus=0.5)


@pytest.fixture
async def sandbox(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    monkeypatch.setattr(usage, "SPAN", 0.05)
    sandbox = await world.sandboxes.create(SessionKey("acme", "s1"), SandboxSpec("template", limits=LIMITS))
    yield sandbox
    await sandbox.close()


async def test_the_figures_are_those_of_all_containers_together(world: World, sandbox: Sandbox) -> None:
    alone = await measure(sandbox)
    assert alone is not None
    assert (alone.processors, alone.processors_max) == (0.0, 0.5)
    assert (alone.memory, alone.memory_max) == (MEMORY, LIMITS.memory)
    assert 0 < alone.disk.used < alone.disk.size
    await sandbox.create_session("python", "")
    measuring_both = spawn(measure(sandbox), "measure")
    await asyncio.sleep(0)
    for kernel in world.backend.alive:
        kernel.computed += 1.0
    both = await measuring_both
    assert both is not None
    assert both.processors > 0
    assert (both.processors_max, both.memory, both.memory_max) == (1.0, 2 * MEMORY, 2 * LIMITS.memory)


async def test_a_kernel_that_ends_meanwhile_is_left_out(world: World, sandbox: Sandbox) -> None:
    await sandbox.create_session("python", "")
    measured = spawn(measure(sandbox), "measure")
    await asyncio.sleep(0)
    world.backend.alive[-1].dies()
    figures = await measured
    assert figures is not None
    assert figures.memory == MEMORY


async def test_a_backend_that_measures_nothing_gives_no_figures(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernel in world.backend.alive:
        monkeypatch.setattr(kernel, "memory", lambda: None)
    assert await measure(sandbox) is None


async def test_a_sandbox_that_has_ended_has_no_figures(sandbox: Sandbox) -> None:
    await sandbox.close()
    with pytest.raises(SessionClosed):
        await measure(sandbox)
