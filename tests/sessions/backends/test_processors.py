"""Choice of the processor for a container; test_docker.py tests that the engine binds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sessions.backends.docker.engine import connect
from sessions.backends.docker.processors import Processors
from sessions.backends.docker.profile import DockerSettings
from sessions.models import Limits
from tests.faults.pretence import FakeEngine, pretence
from tests.faults.proxy import proxy

SETTINGS = DockerSettings("runsc", "image", "network", "test")
ONE = Limits(cpus=1.0)


@pytest.fixture
def fake_engine() -> Iterator[FakeEngine]:
    with pretence() as server:
        yield server


def of(count: int) -> Processors:
    processors = Processors()
    processors.count = count
    return processors


def test_kernels_are_spread_evenly_over_the_processors() -> None:
    processors = of(3)
    bound: list[int | None] = []
    for _ in range(31):
        bound.append(processors.choose(ONE, bound))
    assert sorted(Counter(bound).values()) == [10, 10, 11]


def test_kernels_that_start_at_the_same_time_are_spread() -> None:
    processors = of(4)
    assert {processors.choose(ONE, []) for _ in range(4)} == {0, 1, 2, 3}


def test_the_processor_of_an_ended_kernel_is_chosen_next() -> None:
    assert of(4).choose(ONE, [0, 0, 1, 2, 2, 3, 3]) == 1


def test_a_kernel_bound_to_an_unknown_processor_is_ignored() -> None:
    assert of(2).choose(ONE, [None, 7, 0]) == 1


def test_a_kernel_that_may_use_several_processors_is_not_bound() -> None:
    assert of(4).choose(replace(ONE, cpus=1.5), []) is None


def test_kernels_are_not_bound_before_the_processors_are_known() -> None:
    assert Processors().choose(ONE, []) is None


def test_the_number_of_processors_is_learned_from_the_engine(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(fake_engine.path) as made:
        monkeypatch.setenv("DOCKER_HOST", made.url)
        api = connect()
        processors = Processors()
        processors.learn(api, SETTINGS)
        assert processors.count == 64
        assert made.calls[-1].startswith("DELETE /containers/kernel-gateway-"), "the container of the test is removed"
        api.close()


def test_kernels_are_not_bound_when_the_engine_lacks_a_processor_number(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors = of(64)
    fake_engine.refusal = "Requested CPUs are not available - requested 0-63, available: 4-7"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{fake_engine.path}")
    api = connect()
    processors.learn(api, SETTINGS)
    assert processors.count == 0
    api.close()
