"""Weights of kernels: what a tenant has used lowers the weight of all its kernels, and of no other tenant's."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sessions.backends.docker.engine.cgroup import SLICE, ControlGroup
from sessions.backends.docker.fairness import weights
from sessions.backends.docker.fairness.usage_loop import UsageLoop
from sessions.backends.docker.fairness.weights import HALVED_AT, Weights, weight
from sessions.model.tasks import spawn
from tests.fakes import until
from tests.sessions.backends.docker.kernels import Kernels

#: processors that an idle kernel uses under gVisor, and a canary that runs a short cell twenty times a second
IDLE, CANARY = 0.02, 0.2
#: weight of all kernels beside a process of the host
TOGETHER = 0.1


def test_nine_kernels_that_compute_have_less_weight_together_than_one_canary() -> None:
    nine = [2 / 9] * 9
    assert 50 * 9 * weight(nine) < weight([CANARY])


def test_a_tenant_that_starts_a_kernel_has_more_weight_than_one_that_uses_both_processors() -> None:
    assert 4 * weight([2.0]) == pytest.approx(weight([1.0]), rel=0.01)


def test_more_kernels_give_a_tenant_no_more_weight() -> None:
    assert 10 * weight([0.1] * 10) == pytest.approx(weight([1.0]))


def test_idle_kernels_take_no_weight_from_the_one_that_computes() -> None:
    assert weight([1.0, *[0.0] * 9]) == weight([1.0])


@given(st.lists(st.floats(0, 64), max_size=50))
def test_a_weight_is_above_zero_and_at_most_that_of_a_new_kernel(used: list[float]) -> None:
    assert 0 < weight(used) <= 1 + 1e-9


@pytest.fixture(autouse=True)
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody uses most of the processors, unless a test says so."""
    monkeypatch.setattr(weights, "PROCESSORS", 64)


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels(tmp_path)


async def test_a_tenant_that_computes_loses_weight_and_gets_it_back(kernels: Kernels) -> None:
    busy, other, neighbour = kernels.add("a"), kernels.add("a"), kernels.add("b")
    rounds = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    usual = 10_000
    for second in range(10):
        kernels.uses(busy, second)
        await rounds.round(second)
    assert kernels.weight(busy) == kernels.weight(other) < usual / 50
    assert kernels.weight(neighbour) == usual
    await rounds.round(60.0)
    assert kernels.weight(busy) == usual


async def test_all_kernels_together_have_little_weight_beside_the_host(kernels: Kernels) -> None:
    rounds = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    everybodys = kernels.root / SLICE / "cpu.weight"
    everybodys.parent.mkdir()
    everybodys.write_text("100\n")
    await rounds.round(0.0)
    assert everybodys.read_text() == "100\n"  # there is no kernel
    kernels.add("a")
    await rounds.round(1.0)
    assert everybodys.read_text() == str(round(100 * TOGETHER))


async def test_a_kernel_that_moves_to_a_tenant_counts_there(kernels: Kernels) -> None:
    warm, busy = kernels.add(""), kernels.add("a")
    rounds = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    warm.attach(Mock(), "a")
    for second in range(10):
        kernels.uses(busy, second)
        await rounds.round(second)
    of_one_that_computes = pytest.approx(10_000 / (1 + HALVED_AT**-2), abs=2)  # the files have whole numbers
    assert kernels.weight(warm) == kernels.weight(busy) == of_one_that_computes


async def test_a_kernel_that_is_gone_is_forgotten(kernels: Kernels, tmp_path: Path) -> None:
    gone, stays = kernels.add("a"), kernels.add("a")
    rounds = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    usual = 10_000
    for second in range(10):
        kernels.uses(gone, second)
        await rounds.round(second)
    assert kernels.weight(stays) < usual, "the control: what it has used counts"
    group = tmp_path / SLICE / gone.id
    group.rename(tmp_path / "aside")
    await rounds.round(10.0)
    (tmp_path / "aside").rename(group)  # so that what is remembered of it would count again
    await rounds.round(11.0)
    assert kernels.weight(gone) == kernels.weight(stays) == usual


async def test_a_tenant_that_uses_most_of_the_processors_gives_way_until_it_uses_little(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PROCESSORS", 2)
    busy, other, neighbour = kernels.add("a"), kernels.add("a"), kernels.add("b")
    loop = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    seconds, seen = 0.0, list[tuple[bool, bool, bool]]()
    for processors in (0.7, 1.5, 0.5, 0.3):  # of two: below, above, between, and below again
        began = len(seen)
        for _ in range(10):
            seconds += 1
            kernels.uses(busy, kernels.used(busy) + processors)
            await loop.round(seconds)
            seen.append((kernels.gives_way(busy), kernels.gives_way(other), kernels.gives_way(neighbour)))
        assert seen[-1] == (((processors in {1.5, 0.5}),) * 2 + (False,)), (processors, seen[began:])
    assert kernels.weight(busy) < kernels.weight(neighbour)


async def test_a_tenant_gives_way_after_the_first_round_in_which_it_uses_most_of_the_processors(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PROCESSORS", 2)
    busy = kernels.add("a")
    loop = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    await loop.round(0.0)
    kernels.uses(busy, 0.9 * Weights.interval)
    await loop.round(Weights.interval)
    assert kernels.gives_way(busy)


async def test_a_tenant_that_cannot_give_way_loses_weight(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PROCESSORS", 2)
    busy, neighbour = kernels.add("a"), kernels.add("b")
    for each in (busy, neighbour):
        (kernels.root / SLICE / each.id / "cpu.idle").unlink()  # Linux before 5.15 has no such file
    loop = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    for second in range(10):
        kernels.uses(busy, 2 * second)
        await loop.round(second)
    assert 50 * kernels.weight(busy) < kernels.weight(neighbour)


async def test_one_tenant_at_most_gives_way(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PROCESSORS", 2)
    first, second = kernels.add("a"), kernels.add("b")
    loop = UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root))
    for second_of_time in range(10):
        for each in (first, second):
            kernels.uses(each, 1.5 * second_of_time)
        await loop.round(second_of_time)
    assert [kernels.gives_way(first), kernels.gives_way(second)].count(True) == 1


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Weights, "interval", 0.01)


async def running(kernels: Kernels, condition: Callable[[], object]) -> None:
    """Let the weights be adjusted until a condition holds."""
    task = spawn(UsageLoop(kernels.handles, Weights(TOGETHER, kernels.root)).run(), "weights")
    await until(condition)
    await asyncio.sleep(0.1)  # several more rounds
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.usefixtures("frequent")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
async def test_a_user_who_may_not_set_weights_is_told_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kernels.add("a")
    refused = Mock(side_effect=OSError(number, "cpu.weight"))
    monkeypatch.setattr(ControlGroup, "weigh", refused)
    with capture_logs() as logs:
        await running(kernels, lambda: logs)
    assert [line["log_level"] for line in logs] == ["warning"]
    refused.assert_called_once()


@pytest.mark.usefixtures("frequent")
async def test_a_container_that_ends_meanwhile_stops_nothing(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.add("a")
    gone = Mock(side_effect=OSError(errno.ENODEV, "cpu.weight"))
    monkeypatch.setattr(ControlGroup, "weigh", gone)
    with capture_logs() as logs:
        await running(kernels, lambda: gone.call_count > 1)
    assert not logs


@pytest.mark.usefixtures("frequent")
async def test_a_gateway_that_does_not_see_the_groups_sets_nothing(kernels: Kernels) -> None:
    handle, usual = kernels.add("a"), 7
    (kernels.root / SLICE / handle.id / "cpu.weight").write_text(str(usual))
    seen = Mock(return_value=None)
    handle.cgroup.seconds = seen  # type: ignore[method-assign]
    await running(kernels, lambda: seen.call_count > 1)
    assert kernels.weight(handle) == usual
