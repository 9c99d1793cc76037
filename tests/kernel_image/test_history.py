"""The history of cells from memory, beside IPython's own with its database in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShellABC

from kernel_image.python_kernel.history import History

#: cells as they were sent, and as IPython translates them
CELLS = {
    number: (sent, sent.replace("!ls", "system('ls')"))
    for number, sent in enumerate(["a = 1", "!ls", "a = 1", "b\nc", "A = 1", "print(2)"], 1)
}


@InteractiveShellABC.register
class Shell:
    """What a history needs of its shell."""

    def push(self, *_variables: object, **_options: object) -> None:
        pass


SHELL: Any = Shell()


def ours_without_cells() -> History:
    return History(shell=SHELL, hist_file="unused", enabled=False)


@pytest.fixture(scope="module")
def histories() -> Iterator[tuple[HistoryManager, History]]:
    """IPython's history and ours, with the same cells."""
    stock, ours = HistoryManager(shell=SHELL, hist_file=":memory:"), ours_without_cells()
    for number, (sent, translated) in CELLS.items():
        for history in (stock, ours):
            history.store_inputs(number, translated, sent)
            history.output_hist_reprs[number] = str(number)
    yield stock, ours
    stock.close()


def same(histories: tuple[HistoryManager, History], method: str, **asked: Any) -> list[Any]:
    """Check that both give the same lines, and return them without the number of the session."""
    theirs, ours = ([line[1:] for line in getattr(history, method)(**asked)] for history in histories)
    assert ours == theirs
    return ours


@pytest.mark.parametrize("n", [None, 0, 3, 100])
def test_the_tail_is_that_of_ipython(histories: tuple[HistoryManager, History], n: int | None) -> None:
    for latest, raw in product([True, False], repeat=2):
        assert len(same(histories, "get_tail", n=n, include_latest=latest, raw=raw)) <= len(CELLS)


@pytest.mark.parametrize("pattern", ["*", "a ? 1", "*(*", "b*", "[Ab]*", "nothing"])
def test_a_search_finds_what_ipython_finds(histories: tuple[HistoryManager, History], pattern: str) -> None:
    for unique, n in product([True, False], [None, 0, 2]):
        same(histories, "search", pattern=pattern, unique=unique, n=n)


def test_of_equal_cells_a_unique_search_gives_the_last(histories: tuple[HistoryManager, History]) -> None:
    assert same(histories, "search", pattern="a*", unique=True) == [(3, "a = 1")]


def test_outputs_are_those_of_the_session_on_request(histories: tuple[HistoryManager, History]) -> None:
    assert histories[1].get_tail(1, output=True, include_latest=True) == [(0, 6, ("print(2)", "6"))]


def test_without_cells_there_is_no_history() -> None:
    empty = ours_without_cells()
    assert empty.get_tail() == empty.search() == []
