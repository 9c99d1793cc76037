"""The sum of the memory limits of all kernels: bounded, and counted once for a kernel and the one that replaces it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.errors import QuotaExceeded
from sessions.tenants.memory import PromisedMemory

MIB = 1024**2


def test_a_promise_above_the_maximum_is_refused_with_a_time_to_retry() -> None:
    memory = PromisedMemory(1000 * MIB)
    memory.promise("a", "acme", 600 * MIB)
    with pytest.raises(QuotaExceeded, match="1000 MiB of memory, and 600 MiB are") as refused:
        memory.promise("b", "acme", 401 * MIB)
    assert refused.value.details["limit"] == "memory_in_all"
    assert refused.value.details["retry_after"] > 0
    memory.promise("b", "acme", 400 * MIB)
    memory.release("a")
    memory.promise("c", "acme", 600 * MIB)
    assert memory.promised == 1000 * MIB


def test_a_kernel_and_the_one_that_replaces_it_have_one_promise() -> None:
    memory = PromisedMemory(600 * MIB)
    memory.promise("a", "acme", 600 * MIB)
    memory.promise("a", "acme", 600 * MIB)
    memory.release("a")
    assert memory.promised == 600 * MIB
    memory.release("a")
    assert memory.promised == 0


def test_kernels_that_run_already_are_counted_above_the_maximum_too() -> None:
    memory = PromisedMemory(100)
    memory.hold("a", "acme", 1000)
    assert memory.promised == 1000
    with pytest.raises(QuotaExceeded):
        memory.promise("b", "acme", 1)


def test_without_a_maximum_nothing_is_refused() -> None:
    memory = PromisedMemory()
    memory.promise("a", "acme", 2**60)
    assert memory.promised == 2**60


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100), st.booleans())))
def test_the_sum_never_exceeds_the_maximum_and_all_is_given_back(steps: list[tuple[str, int, bool]]) -> None:
    memory, held = PromisedMemory(150), Counter[str]()
    for place, size, begins in steps:
        if begins:
            try:
                memory.promise(place, "acme", size)
            except QuotaExceeded:
                continue
            held[place] += 1
        elif held[place]:
            memory.release(place)
            held[place] -= 1
        assert memory.promised <= 150
    for place in held.elements():
        memory.release(place)
    assert memory.promised == 0
