"""Figures are held against their controls, and reported."""

from __future__ import annotations

import pytest

from tests.figures import FAILS_AT, Figures


def test_a_figure_fails_at_three_times_its_expectation_and_is_still_reported() -> None:
    figures = Figures(alone=True)
    figures.hold("an answer", 2.9, 1.0)
    with pytest.raises(AssertionError, match="an answer: 3 s, expected 1 s"):
        figures.hold("an answer", FAILS_AT, 1.0)
    figures.hold("memory", 1024.0**2, 1024.0**2, "MiB")
    first, second = figures.table()
    assert first.split() == ["an", "answer", "2", "x", "worst", "3", "s", "expected", "1", "s", "3.00"]
    assert second.split() == ["memory", "1", "x", "worst", "1", "MiB", "expected", "1", "MiB", "1.00"]


def test_beside_other_tests_no_figure_is_checked() -> None:
    figures = Figures(alone=False)
    figures.hold("an answer", 100.0, 1.0)
    assert list(figures.table()) == []
