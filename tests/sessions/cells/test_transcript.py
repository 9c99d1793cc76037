"""The transcript of conversations with a kernel, read back as a notebook."""

from __future__ import annotations

import operator
import tracemalloc
from itertools import count
from typing import Any

import nbformat
import pytest

from sessions.cells import transcript
from sessions.cells.notebook import PIECE, notebook
from sessions.cells.outputs import Event
from sessions.cells.timeline import Timeline
from sessions.cells.transcript import Transcript
from sessions.model.errors import OutOfMemory
from sessions.model.values import StateChange, StateNotice
from sessions.tenants.kept_bytes import KeptBytes
from tests.fakes import (
    PYTHON,
    Saying,
    busy,
    clear,
    display,
    error,
    exported,
    idle,
    result,
    started,
    stream,
    update,
)


class Kernel:
    """A kernel whose session is recorded."""

    def __init__(self, max_output_bytes: int = 100_000, max_bytes: int = transcript.MAX_BYTES) -> None:
        self.kept = KeptBytes()
        self.timeline = Timeline()
        self.transcript = Transcript(max_output_bytes, max_bytes, self.kept, timeline=self.timeline)
        self._ids = (f"cell-{number}" for number in count(1))

    def is_sent(self, code: str) -> str:
        """Send a cell as a client.

        Returns:
            the cell's id.
        """
        cell = next(self._ids)
        self.transcript.open(cell, code)
        return cell

    def says(self, *sayings: Saying, to: str) -> list[Event | None]:
        return [self.transcript.record(saying.to(to)) for saying in sayings]

    @property
    def notebook(self) -> dict[str, Any]:
        """The notebook, which must be valid at any time."""
        book = exported(self.transcript)
        nbformat.validate(book)
        return book

    @property
    def cells(self) -> list[tuple[str, int | None, list[str]]]:
        """Code, number and texts of each cell."""
        return [
            (cell["source"], cell["execution_count"], [_text(output) for output in cell["outputs"]])
            for cell in self.notebook["cells"]
            if cell["cell_type"] == "code"
        ]


def _text(output: dict[str, Any]) -> str:
    match output["output_type"]:
        case "stream":
            return str(output["text"])
        case "error":
            return str(output["ename"])
        case _:
            return str(output["data"]["text/plain"])


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def test_a_conversation_becomes_a_notebook(kernel: Kernel) -> None:
    one = kernel.is_sent("print('hi')")
    kernel.says(busy(), started("print('hi')", 1), stream("hi\n"), idle(), to=one)
    two = kernel.is_sent("1 + 1")
    kernel.says(busy(), started("1 + 1", 2), result("2", 2), idle(), to=two)
    three = kernel.is_sent("1 / 0")
    kernel.says(busy(), started("1 / 0", 3), stream("…", "stderr"), error("ZeroDivisionError"), idle(), to=three)
    assert kernel.cells == [
        ("print('hi')", 1, ["hi\n"]),
        ("1 + 1", 2, ["2"]),
        ("1 / 0", 3, ["…", "ZeroDivisionError"]),
    ]


def test_the_notebook_names_its_kernelspec(kernel: Kernel) -> None:
    kernel.is_sent("x")
    assert kernel.notebook["metadata"]["kernelspec"] == {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    assert (kernel.notebook["nbformat"], kernel.notebook["nbformat_minor"]) == (4, 5)


def test_a_session_without_cells_has_an_empty_notebook(kernel: Kernel) -> None:
    assert kernel.cells == []


def test_the_start_of_a_cell_is_reported_once(kernel: Kernel) -> None:
    cell = kernel.is_sent("x")
    events = kernel.says(started("x", 4), started("x", 5), to=cell)
    assert events == [{"type": "started", "execution_count": 4}, None]
    assert kernel.cells == [("x", 4, [])]


@pytest.mark.parametrize("number", [None, "1", -1, 1.5, [], True])
def test_an_unusable_execution_count_is_recorded_as_none(kernel: Kernel, number: object) -> None:
    cell = kernel.is_sent("x")
    assert kernel.says(started("x", number), to=cell) == [{"type": "started", "execution_count": None}]
    assert kernel.cells == [("x", None, [])]


# -- cells of other clients ------------------------------------------------------------------------------------


def test_a_cell_of_a_channel_client_is_recorded_too(kernel: Kernel) -> None:
    kernel.says(busy(), started("y = 1", 9), stream("raw"), to="another-client")
    assert kernel.cells == [("y = 1", 9, ["raw"])]


def test_a_kernel_cannot_change_the_code_of_a_cell(kernel: Kernel) -> None:
    cell = kernel.is_sent("honest")
    kernel.says(started("forged"), to=cell)
    assert kernel.cells[0][0] == "honest"


@pytest.mark.parametrize("code", [None, 1, ["x"], {}, ""])
def test_a_cell_without_code_is_left_out(kernel: Kernel, code: object) -> None:
    kernel.says(Saying("execute_input", {"code": code}), stream("x"), to="another-client")
    assert kernel.cells == []


def test_outputs_of_unknown_cells_are_left_out(kernel: Kernel) -> None:
    kernel.is_sent("x")
    assert kernel.says(stream("?"), display("?"), error(), clear(wait=False), to="nobody") == [None] * 4
    assert kernel.says(stream("?"), to="") == [None]
    assert kernel.cells == [("x", None, [])]


def test_late_output_belongs_to_the_cell_that_caused_it(kernel: Kernel) -> None:
    one, two = kernel.is_sent("1"), kernel.is_sent("2")
    kernel.says(stream("a"), idle(), to=one)
    kernel.says(stream("b"), to=two)
    kernel.says(stream("late"), to=one)
    assert kernel.cells == [("1", None, ["alate"]), ("2", None, ["b"])]


def test_a_forgotten_cell_and_its_late_output_are_left_out(kernel: Kernel) -> None:
    one, two = kernel.is_sent("secret"), kernel.is_sent("shown")
    kernel.says(stream("x"), to=one)
    kernel.transcript.forget(one)
    kernel.transcript.forget("never there")
    assert kernel.says(stream("late"), to=one) == [None]
    kernel.says(stream("y"), to=two)
    assert kernel.cells == [("shown", None, ["y"])]


# -- displays that change --------------------------------------------------------------------------------------


def test_a_display_of_an_earlier_cell_is_updated_in_that_cell(kernel: Kernel) -> None:
    one, two = kernel.is_sent("1"), kernel.is_sent("2")
    kernel.says(display("0 %", "bar"), to=one)
    kernel.says(stream("text"), to=two)
    assert kernel.says(update("100 %", "bar"), to=two) == [
        {"type": "update_display_data", "display_id": "bar", "data": {"text/plain": "100 %"}, "metadata": {}}
    ]
    assert kernel.cells == [("1", None, ["100 %"]), ("2", None, ["text"])]


def test_a_display_in_two_cells_is_updated_in_both(kernel: Kernel) -> None:
    one, two = kernel.is_sent("1"), kernel.is_sent("2")
    kernel.says(display("a", "x"), to=one)
    kernel.says(display("b", "x"), display("c", "y"), to=two)
    kernel.says(update("new", "x"), to=two)
    assert kernel.cells == [("1", None, ["new"]), ("2", None, ["new", "c"])]


def test_an_update_changes_the_last_cells_that_show_its_display(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    monkeypatch.setattr(transcript, "UPDATED_MAX", 2)
    for _ in range(4):
        kernel.says(display("old", "x"), to=kernel.is_sent("show"))
    kernel.says(update("new", "x"), to=kernel.is_sent("update"))
    assert [texts for _, _, texts in kernel.cells] == [["old"], ["old"], ["new"], ["new"], []]


def test_an_update_of_an_unknown_display_changes_nothing(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(display("a", "x"), to=one)
    assert kernel.says(update("b", "y"), Saying("update_display_data", {}), to=one) == [None, None]
    assert kernel.cells == [("1", None, ["a"])]


def test_a_display_of_a_forgotten_cell_cannot_be_updated(kernel: Kernel) -> None:
    one, two = kernel.is_sent("1"), kernel.is_sent("2")
    kernel.says(display("a", "x"), to=one)
    kernel.transcript.forget(one)
    assert kernel.says(update("b", "x"), to=two) == [None]


def test_a_cleared_display_cannot_be_updated(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(display("a", "x"), clear(wait=False), to=one)
    assert kernel.says(update("b", "x"), to=one) == [None]
    assert kernel.cells == [("1", None, [])]


def test_ids_of_displays_that_were_not_kept_are_not_kept_either() -> None:
    kernel = Kernel(max_output_bytes=500)
    one = kernel.is_sent("1")
    kernel.says(*[display("a", f"id-{number}") for number in range(100)], to=one)
    kept = kernel.transcript.find(one)
    assert kept is not None
    assert len(kept.displays) == len(kernel.cells[0][2]) - 1 < 99


@pytest.mark.parametrize("wait", [False, True])
def test_ids_of_cleared_displays_are_forgotten(kernel: Kernel, wait: bool) -> None:  # noqa: FBT001
    one = kernel.is_sent("1")
    tracemalloc.start()
    for number in range(10, 60):
        kernel.says(display("a", f"{number}" * 40_000), clear(wait=wait), to=one)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000


def test_a_display_that_is_shown_again_after_a_clear_can_be_updated(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(display("a", "x"), display("b", "y"), clear(wait=True), display("c", "x"), to=one)
    assert kernel.says(update("d", "y"), to=one) == [None]
    kernel.says(update("e", "x"), to=one)
    assert kernel.cells == [("1", None, ["e"])]


def test_ids_of_displays_that_the_end_of_their_cell_has_cleared_are_forgotten(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(display("a", "x"), clear(wait=True), to=one)
    cell = kernel.transcript.find(one)
    assert cell is not None
    kernel.transcript.end(cell, {"ename": "UsageError", "evalue": "no magic", "traceback": []})
    assert cell.displays == set()


def test_the_id_of_a_display_in_another_message_is_not_kept(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(Saying("stream", stream("a").content | {"transient": {"display_id": "x" * 100_000}}), to=one)
    cell = kernel.transcript.find(one)
    assert cell is not None
    assert cell.displays == set()


# -- snapshots -------------------------------------------------------------------------------------------------


def test_a_snapshot_does_not_change(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(display("first", "id"), stream("kept\n"), display("second"), stream("so far"), to=one)
    before, again = (kernel.transcript.cells() for _ in range(2))
    assert all(map(operator.is_, before[0].outputs._packed, again[0].outputs._packed))
    told = b"".join(notebook(before, PYTHON))
    kernel.says(stream(", and more"), update("changed", "id"), to=one)
    assert kernel.cells == [("1", None, ["changed", "kept\n", "second", "so far, and more"])]
    kernel.says(clear(wait=False), stream("after"), to=one)
    kernel.transcript.forget(one)
    assert b"".join(notebook(before, PYTHON)) == told


def test_a_snapshot_keeps_the_content_that_an_update_replaces(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(display("0 %", "bar"), update("50 %", "bar"), to=one)
    before = kernel.transcript.cells()
    kernel.says(update("100 %", "bar"), to=one)
    assert [list(map(_text, book[0].outputs)) for book in (before, kernel.transcript.cells())] == [
        ["50 %"],
        ["100 %"],
    ]


def test_a_notebook_comes_in_pieces_of_bounded_size() -> None:
    kernel = Kernel(max_output_bytes=10**6)
    for _ in range(3):
        cell = kernel.is_sent("many")
        kernel.says(*[display(str(number)) for number in range(1000)], to=cell)
    pieces = list(notebook(kernel.transcript.cells(), PYTHON))
    assert len(pieces) > 5
    assert max(map(len, pieces)) < PIECE + 1000
    assert [len(texts) for _, _, texts in kernel.cells] == [1000, 1000, 1000]


# -- what a notebook says that would give other variables when it is run again ---------------------------------


def all_cells(kernel: Kernel) -> list[tuple[str, str, list[str]]]:
    """Return kind, source and tags of each cell."""
    cells = kernel.notebook["cells"]
    return [(cell["cell_type"], cell["source"], cell["metadata"].get("tags", [])) for cell in cells]


def test_cells_after_a_checkpoint_are_undone_by_the_return_to_it(kernel: Kernel) -> None:
    timeline, undone = kernel.timeline, ["rolled-back", "skip-execution"]
    kernel.is_sent("1")
    timeline.keep("one", [])
    kernel.is_sent("2")
    timeline.keep("two", ["one"])
    assert [tags for _, _, tags in all_cells(kernel)] == [[], []]
    kernel.transcript.change(StateNotice(StateChange.ROLLED_BACK, "rolled back to 'one'"), "one")
    kernel.is_sent("3")
    told = "**kernel-gateway:** The cells above with the tag `rolled-back` are undone: rolled back to 'one'"
    assert all_cells(kernel) == [("code", "1", []), ("code", "2", undone), ("markdown", told, []), ("code", "3", [])]
    kernel.transcript.change(StateNotice(StateChange.ROLLED_BACK, "rolled back to 'two'"), "two")
    kernel.is_sent("4")
    code = [(source, tags) for kind, source, tags in all_cells(kernel) if kind == "code"]
    assert code == [("1", []), ("2", []), ("3", undone), ("4", [])]  # the second cell is there again
    timeline.keep("three", ["one", "two"])
    kernel.is_sent("5")
    kernel.transcript.change(StateNotice(StateChange.ROLLED_BACK, "rolled back to 'three'"), "three")
    assert [source for _, source, tags in all_cells(kernel) if tags] == ["3", "5"]


def test_a_return_to_the_checkpoint_of_an_earlier_gateway_undoes_all_cells(kernel: Kernel) -> None:
    kernel.timeline.keep("new", ["of an earlier gateway"])
    kernel.is_sent("1")
    kernel.timeline.keep("newer", ["of an earlier gateway", "new"])
    kernel.transcript.change(StateNotice(StateChange.ROLLED_BACK, "rolled back"), "of an earlier gateway")
    assert [source for _, source, tags in all_cells(kernel) if tags] == ["1"]


def test_what_is_known_of_checkpoints_and_dropped_cells_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_CELLS", 3)
    kernel = Kernel()
    for number in range(20):
        kernel.timeline.keep(f"checkpoint {number}", [f"checkpoint {number - 1}"])
        kernel.is_sent("undone")
        kernel.transcript.change(StateNotice(StateChange.ROLLED_BACK, "rolled back"), f"checkpoint {number}")
        kernel.is_sent("kept")
    assert len(kernel.timeline._moments) == 2
    assert len(kernel.timeline._present) <= 4
    assert [tags != [] for kind, _, tags in all_cells(kernel) if kind == "code"] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (StateChange.LOST, "The variables of the cells above are gone: why"),
        (StateChange.RESTARTED, "The variables of the cells above are gone: why"),
        (StateChange.PRESERVED, "why"),
    ],
)
def test_a_change_of_the_variables_is_told_where_it_happened(kernel: Kernel, change: StateChange, told: str) -> None:
    kernel.is_sent("1")
    kernel.transcript.change(StateNotice(StateChange.LOST, "replaced by the next change"))
    kernel.transcript.change(StateNotice(change, "why"))
    expected: list[tuple[str, str, list[str]]]
    expected = [("code", "1", []), ("markdown", f"**kernel-gateway:** {told}", [])]
    assert all_cells(kernel) == expected
    kernel.is_sent("2")
    kernel.is_sent("3")
    assert all_cells(kernel) == [*expected, ("code", "2", []), ("code", "3", [])]


def test_a_cell_says_what_ended_it(kernel: Kernel) -> None:
    one = kernel.is_sent("1")
    kernel.says(stream("so far"), to=one)
    entry = kernel.transcript.find(one)
    assert entry is not None
    kernel.transcript.end(entry, None, error=OutOfMemory())
    (cell,) = kernel.notebook["cells"]
    told = OutOfMemory().message
    assert cell["metadata"]["kernel_gateway"]["error"] == {"code": "SB006", "name": "OutOfMemory", "message": told}
    assert [output["text"] for output in cell["outputs"]] == ["so far", f"\n[kernel-gateway SB006: {told}]\n"]


def test_a_notebook_names_the_environment_variables_of_single_cells(kernel: Kernel) -> None:
    kernel.transcript.open("one", "1", {"TOKEN": "secret", "ZONE": "x"})
    kernel.is_sent("2")
    told = "**kernel-gateway:** The next cell ran with environment variables of its own: TOKEN, ZONE"
    assert [source for _, source, _ in all_cells(kernel)] == [told, "1", "2"]


def test_a_notebook_says_where_cells_are_missing(kernel: Kernel) -> None:
    for code in ("1", "2", "3", "", "5", "6"):
        kernel.is_sent(code)
    for cell in ("cell-1", "cell-3", "cell-6"):
        kernel.transcript.forget(cell)
    missing = "Cells that ran here and are not in this notebook: 1. They are not kept any more, or never were."
    told = f"**kernel-gateway:** {missing}"
    assert [source for _, source, _ in all_cells(kernel)] == [told, "2", told, "5", told]


# -- bounds ----------------------------------------------------------------------------------------------------


def test_a_cell_s_outputs_are_bounded() -> None:
    kernel = Kernel(max_output_bytes=10)
    one = kernel.is_sent("1")
    assert kernel.says(stream("12345"), stream("678901"), stream("2"), to=one)[2] is None
    two = kernel.is_sent("2")
    kernel.says(stream("next"), to=two)
    told = "\n[kernel-gateway: 2 bytes of output were left out]\n"
    assert kernel.cells == [("1", None, ["1234567890", told]), ("2", None, ["next"])]


def test_the_oldest_cells_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_CELLS", 3)
    kernel = Kernel()
    for number in range(5):
        kernel.is_sent(f"cell {number}")
    assert [code for code, _, _ in kernel.cells] == ["cell 2", "cell 3", "cell 4"]


def test_the_oldest_cells_are_dropped_when_all_are_too_large() -> None:
    kernel = Kernel(max_bytes=50_000)
    for number in range(5):
        cell = kernel.is_sent(f"cell {number}")
        kernel.says(stream("x" * 20_000), to=cell)
    assert [code for code, _, _ in kernel.cells] == ["cell 3", "cell 4"]


def test_a_display_for_which_its_own_cell_had_to_go_cannot_be_updated() -> None:
    kernel = Kernel(max_bytes=50_000)
    one, two = kernel.is_sent("1"), kernel.is_sent("2")
    kernel.says(stream("x" * 40_000), to=two)
    kernel.says(display("x" * 20_000, "late"), to=one)
    assert kernel.says(update("new", "late"), to=two) == [None]
    assert [code for code, _, _ in kernel.cells] == ["2"]


def test_code_counts_in_bytes() -> None:
    kernel = Kernel(max_bytes=5000)
    kernel.is_sent("ü" * 2000)
    kernel.is_sent("last")
    assert [code for code, _, _ in kernel.cells] == ["last"]


def test_the_last_cell_is_kept_even_if_it_is_too_large() -> None:
    kernel = Kernel(max_bytes=100)
    cell = kernel.is_sent("large")
    kernel.says(stream("x" * 1000), to=cell)
    assert [code for code, _, _ in kernel.cells] == ["large"]


def test_cleared_and_forgotten_outputs_make_room() -> None:
    kernel = Kernel(max_bytes=50_000)
    one, two = kernel.is_sent("1"), kernel.is_sent("2")
    for cell in (one, two):
        kernel.says(stream("x" * 15_000), to=cell)
    kernel.says(clear(wait=False), to=one)
    kernel.transcript.forget(two)
    three = kernel.is_sent("3")
    kernel.says(stream("x" * 30_000), to=three)
    assert [code for code, _, _ in kernel.cells] == ["1", "3"]


def test_sizes_add_up() -> None:
    kernel = Kernel()
    sent = []
    for _ in range(3):
        sent.append(cell := kernel.is_sent("code"))
        kernel.says(stream("x"), display("a", "id"), update("longer than before", "id"), clear(wait=True), to=cell)
        kernel.says(display("b", "id"), to=cell)

    def sizes() -> list[int]:
        return [entry.size for entry in map(kernel.transcript.find, sent) if entry is not None]

    assert len(sizes()) == 3
    assert kernel.kept.size == sum(sizes())
    kernel.transcript.forget("cell-2")
    assert len(sizes()) == 2
    assert kernel.kept.size == sum(sizes())
