"""Which processor a sandbox runs on; that the engine binds it is in test_docker.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sessions.backends.docker.engine import connect
from sessions.backends.docker.processors import Processors
from sessions.backends.docker.profile import DockerSettings
from sessions.models import Limits
from tests.faults.pretence import Pretence, pretence
from tests.faults.proxy import proxy

SETTINGS = DockerSettings("runsc", "image", "network", "test")
ONE = Limits(cpus=1.0)


@pytest.fixture
def pretended() -> Iterator[Pretence]:
    with pretence() as server:
        yield server


def of(count: int) -> Processors:
    processors = Processors()
    processors.count = count
    return processors


def test_each_has_as_many_kernels_as_the_others() -> None:
    processors = of(3)
    bound: list[int | None] = []
    for _ in range(31):
        bound.append(processors.choose(ONE, bound))
    assert sorted(Counter(bound).values()) == [10, 10, 11]


def test_kernels_that_start_at_the_same_time_are_spread() -> None:
    processors = of(4)
    assert {processors.choose(ONE, []) for _ in range(4)} == {0, 1, 2, 3}


def test_the_place_of_one_that_has_ended_is_taken_next() -> None:
    assert of(4).choose(ONE, [0, 0, 1, 2, 2, 3, 3]) == 1


def test_a_kernel_of_an_earlier_machine_does_no_harm() -> None:
    assert of(2).choose(ONE, [None, 7, 0]) == 1


def test_who_may_use_several_is_bound_to_none() -> None:
    assert of(4).choose(replace(ONE, cpus=1.5), []) is None


def test_as_long_as_it_is_not_known_what_there_is_nobody_is_bound() -> None:
    assert Processors().choose(ONE, []) is None


def test_the_engine_is_asked(pretended: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(pretended.path) as made:
        monkeypatch.setenv("DOCKER_HOST", made.url)
        api = connect()
        processors = Processors()
        processors.learn(api, SETTINGS)
        assert processors.count == 64
        assert made.calls[-1].startswith("DELETE /containers/kernel-gateway-"), "what it was asked with is gone"
        api.close()


def test_an_engine_that_counts_otherwise_binds_nobody(pretended: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    processors = of(64)
    pretended.refusal = "Requested CPUs are not available - requested 0-63, available: 4-7"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{pretended.path}")
    api = connect()
    processors.learn(api, SETTINGS)
    assert processors.count == 0
    api.close()
