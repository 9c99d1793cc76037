"""Budgets that all tenants share: no tenants together use up what one more needs, whatever they do."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.checkpoint import OnIdle
from sessions.model.errors import QuotaExceeded
from sessions.model.values import SessionSpec
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.budget import Budget
from sessions.tenants.shares import NOBODY
from sessions.upkeep.culler import Culler
from tests.fakes import MEMORY, FakeBackend, World, run, until, world_over

#: memory limit of one kernel
ONE = SessionSpec().limits.memory


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 1000))), st.floats(0.1, 0.9))
def test_something_is_left_for_one_more_tenant_whatever_the_others_take(
    steps: list[tuple[str, int]], share: float
) -> None:
    budget = Budget(1000, share)
    for number, (tenant, size) in enumerate(steps):
        if budget.allows(tenant, size):
            budget.hold(str(number), tenant, size)
    left = 1000 - budget.used
    assert left > 0
    assert budget.allows("new", int(share * left))


def test_a_lone_tenant_may_have_all_if_that_is_its_share() -> None:
    budget = Budget(1000, 1.0)
    assert budget.allows("a", 1000)
    assert not Budget(1000, 0.5).allows("a", 501)


def test_what_nobody_uses_yet_takes_nothing_from_a_tenants_share() -> None:
    budget = Budget(1000, 0.5)
    budget.hold("warm", NOBODY, 400)
    assert budget.allows("a", 500)
    budget.hand_over("warm", "a")
    assert not budget.allows("a", 101)
    budget.release("warm")
    assert budget.allows("a", 500)


def test_a_place_grows_and_never_shrinks_until_it_is_released() -> None:
    budget = Budget(1000)
    budget.hold("file", "a", 100)
    for size, used in ((300, 300), (200, 300)):
        budget.grow("file", size)
        assert (budget.size("file"), budget.by_tenant(), budget.used) == (used, {"a": used}, used)
    budget.release("file")
    assert (budget.by_tenant(), budget.used) == ({}, 0)


async def test_a_tenant_cannot_use_up_the_memory_of_all_kernels_nor_end_warm_ones_for_more(
    backend: FakeBackend,
) -> None:
    async with world_over(backend, memory=8 * ONE, share=0.5, pool_size=1) as world:
        for number in range(4):
            await world.session(f"s{number}", "evil")
        await until(world.pool.depth)
        with pytest.raises(QuotaExceeded) as refused:
            await world.session("s4", "evil")
        assert (refused.value.details["limit"], world.pool.depth()) == ("memory_of_tenant", 1)
        assert refused.value.details["max"] == 4 * ONE
        assert (await run(await world.session("s1", "acme"), "print(1)")).outputs[0]["text"] == "1\n"


async def asleep(world: World, culler: Culler, *sessions: Session) -> list[bool]:
    world.clock.passes(301)
    await culler.sweep()
    await culler.sleep_turns.finished()
    return [session.state is State.ASLEEP for session in sessions]


@pytest.mark.parametrize("share", [0.5, 1.0])
async def test_a_tenant_cannot_use_up_the_disk_on_which_others_sleep(backend: FakeBackend, share: float) -> None:
    backend.sleep.size = MEMORY
    spec = SessionSpec(on_idle=OnIdle.SLEEP)
    async with world_over(backend, defaults=spec, sleep_disk=8 * MEMORY, share=share) as world:
        evil = await world.session("s1", "evil")
        for _ in range(10):
            await evil.checkpoints.take(None)
        others = await asyncio.gather(*(world.session("s1", tenant) for tenant in ("acme", "bank")))
        slept = await asleep(world, Culler(world.registry, world.sandboxes), *others)
        assert slept == [share < 1] * 2  # with the whole disk as its share, the first tenant leaves nothing
        if share < 1:
            assert len(evil.checkpoints.all) == 4
