"""The soak's verdict finds what grows and what stays, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.gauges import Reading
from tests.soak.hostile import HOSTILE
from tests.soak.scenes import SCENES, WEIGHTS
from tests.soak.verdict import findings, growth

REST = Reading(
    memory=80, descriptors=140, threads=14, tasks=25, containers=0, volumes=0, mounts=0, shims=0, images=0, leftovers=0
)
BUSY = replace(
    REST, memory=110, descriptors=280, threads=20, tasks=70, containers=9, volumes=9, mounts=9, shims=9, images=9
)


def test_growth_is_that_of_the_fitted_line() -> None:
    assert growth([1, 2, 3, 4]) == pytest.approx(3)
    assert growth([5, 1, 5, 1, 5]) == pytest.approx(0)
    assert growth([7]) == growth([]) == 0


def test_a_gateway_that_only_warms_up_in_the_first_half_is_flat() -> None:
    minutes = [replace(BUSY, memory=80 + 4 * minute) for minute in range(8)] + [BUSY] * 10
    assert list(findings(REST, minutes, REST)) == []


@pytest.mark.parametrize("gauge", ["memory", "descriptors", "threads", "tasks"])
def test_a_gateway_that_grows_by_a_little_each_minute_is_not(gauge: str) -> None:
    minutes = [replace(BUSY, **{gauge: getattr(BUSY, gauge) * (1 + minute / 20)}) for minute in range(60)]
    assert [found.partition(" ")[0] for found in findings(REST, minutes, REST)] == [gauge]


@pytest.mark.parametrize("gauge", ["containers", "volumes", "mounts", "shims", "images", "leftovers"])
def test_what_is_left_at_the_end_is_found(gauge: str) -> None:
    assert list(findings(REST, [BUSY] * 10, replace(REST, **{gauge: 1}))) == [f"{gauge}: 0 at the start, 1 at the end"]


def test_each_scene_can_be_played() -> None:
    assert len(WEIGHTS) == len(SCENES)
    assert min(WEIGHTS) > 0
    assert len(HOSTILE) > 20
