"""How promises are judged, over scripted kernels: what is broken is found, and so is what shows nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from sessions import proving
from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle, Launch
from sessions.model.errors import BackendUnavailable
from sessions.proving import PROMISES, Ground, Outcome, Promise, Verdict, prove
from sessions.proving.ground import NothingToTry, Refused
from sessions.proving.promises import branch, checkpoint, removed, restore, rollback, start
from tests.fakes import World


async def _not_removed(_container: str) -> None:
    """Leave the container."""


def ground(world: World) -> Ground:
    return Ground(world.backend, world.readiness, world.registry, _not_removed)


async def judged(
    world: World, monkeypatch: pytest.MonkeyPatch, *promises: Promise, left_out: Mapping[str, str] | None = None
) -> list[Verdict]:
    monkeypatch.setattr(proving, "PROMISES", promises)
    return [verdict async for verdict in prove(ground(world), left_out or {}, lambda _name: None)]


async def _works(_ground: Ground) -> str:
    return "seen"


async def test_each_outcome_is_told_with_its_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(_ground: Ground) -> str:
        raise Refused("why")

    async def fails(_ground: Ground) -> str:
        raise BackendUnavailable

    async def shows_nothing(_ground: Ground) -> str:
        raise NothingToTry("nothing there")

    async def hangs(_ground: Ground) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(proving, "DEADLINE", 0.05)
    kept = (Promise("works", _works, 9, needs=()), Promise("slow", _works, 0, needs=("works",)))
    broken = [Promise(each.__name__, each, 9, needs=()) for each in (refuses, fails, shows_nothing, hangs)]
    later = [
        Promise("later", _works, 9, needs=("refuses",)),
        Promise("off", _works, 9, needs=()),
        Promise("below", _works, 9, needs=("off",)),
    ]
    found = await judged(world, monkeypatch, *kept, *broken, *later, left_out={"off": "by setting"})
    told = {verdict.name: (verdict.outcome, verdict.broken, str(verdict)) for verdict in found}
    assert [outcome for outcome, _, _ in told.values()] == [
        *(Outcome.WORKS, Outcome.SLOW, Outcome.REFUSED, Outcome.REFUSED, Outcome.LEFT_OUT, Outcome.REFUSED),
        *(Outcome.REFUSED, Outcome.LEFT_OUT, Outcome.LEFT_OUT),
    ]
    assert told["works"][2] == "works, 0.0 s; seen"
    assert told["slow"][1:] == (False, "slower than 0 s: 0.0 s; seen")
    assert told["refuses"][1:] == (True, "refused: why")
    assert "SB009" in told["fails"][2]
    assert told["hangs"][2] == "refused: it did not end within 0.05 s"
    assert told["later"][2] == "refused: not tried, because it needs `refuses`"
    assert told["below"][1:] == (False, "left out: by setting")


def test_each_promise_needs_earlier_ones_only() -> None:
    names = [promise.name for promise in PROMISES]
    assert len({*names}) == len(names)
    for number, promise in enumerate(PROMISES):
        assert {*promise.needs} <= {*names[:number]}


async def test_a_session_that_returns_with_other_variables_is_found(world: World) -> None:
    await world.readiness.check()
    tried = ground(world)
    await start(tried)
    await checkpoint(tried)
    await rollback(tried)
    await branch(tried)
    for namespace, _, _ in world.backend.sleep.copies.values():
        namespace["value"] = "other"
    with pytest.raises(Refused, match="should be those of the checkpoint"):
        await rollback(tried)


async def test_a_kernel_that_was_started_plainly_was_not_restored(world: World) -> None:
    await world.readiness.check()
    tried = ground(world)
    with pytest.raises(Refused, match="scripted kernels have none"):
        await restore(tried)
    world.backend.golden_images = Ability(on=True, detail="restored")
    with pytest.raises(Refused, match="the kernel was started plainly"):
        await restore(tried)


async def test_a_kernel_with_lower_limits_must_be_restored_like_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.readiness.check()
    tried, starting = ground(world), world.backend.start
    world.backend.golden_images = Ability(on=True, detail="restored")

    async def start_like_others(launch: Launch) -> KernelHandle:
        world.backend.restored(succeeded=launch.limits == world.registry.defaults.limits)
        return await starting(launch)

    monkeypatch.setattr(world.backend, "start", start_like_others)
    with pytest.raises(Refused, match=r"the kernel with a disk of 32 MiB was started plainly"):
        await restore(tried)


async def test_a_container_that_is_still_there_was_not_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.readiness.check()
    monkeypatch.setattr("sessions.proving.promises._NOTICED", 0.1)
    with pytest.raises(TimeoutError):
        await removed(ground(world))
    tried = ground(world)

    async def dies(_container: str) -> None:
        world.backend.kernel.dies(137)

    tried.remove = dies
    assert "lost" in await removed(tried)
