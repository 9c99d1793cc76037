"""Kernels that belong to nobody are ended, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.model.values import Limits, SandboxSpec, SessionKey
from sessions.upkeep.strays import OWNERLESS_MAX
from tests.fakes import PYTHON, FakeBackend, World, run, until, world_over

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    async with world_over(backend, pool_size=1) as world:
        yield world


async def test_a_kernel_that_belongs_to_nobody_for_long_is_ended_and_counted_and_no_other(
    world: World,
) -> None:
    session = await world.session()
    sandbox = await world.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("", Limits()))
    member = await sandbox.default_session("python")
    await until(lambda: world.pool.depth() == 1)
    owned = len(world.backend.alive)
    stray = await world.starts.start_kernel(Launch(PYTHON, tenant="acme"))
    await world.strays.sweep()
    assert world.stray == 0  # it may be being handed over
    world.clock.passes(OWNERLESS_MAX)
    with capture_logs() as logged:
        await world.strays.sweep()
    assert [line["kernel"] for line in logged] == [stray.handle.id[:12]]
    assert (world.stray, len(world.backend.alive)) == (1, owned)
    await until(lambda: not stray.alive)
    await until(lambda: len(world.starts.running) == owned)
    world.clock.passes(OWNERLESS_MAX)
    await world.strays.sweep()
    assert world.stray == 1
    assert (await run(session, "print(1)")).outputs[0]["text"] == "1\n"
    assert (await run(member, "print(1)")).outputs[0]["text"] == "1\n"
