"""The outputs of one cell, as results of a conversation with its kernel."""

from __future__ import annotations

import tracemalloc
from typing import Any

import nbformat
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import v4

from sessions.cells import outputs
from sessions.cells.outputs import OUTPUT_BYTES, PIECE_BYTES, Event, OutputArea
from tests.fakes import Saying, busy, clear, display, error, idle, result, stream, update

Json = dict[str, Any]


class Kernel:
    """A kernel that sends messages of one cell."""

    def __init__(self, max_bytes: int = 100_000) -> None:
        self.area = OutputArea(max_bytes)

    def says(self, *sayings: Saying) -> list[Event | None]:
        return [self.area.add(saying.to("cell")) for saying in sayings]

    @property
    def shown(self) -> list[Json]:
        """The outputs, which must be valid at any time."""
        shown = self.area.outputs()
        book = v4.new_notebook(
            cells=[v4.new_code_cell("x", outputs=[nbformat.from_dict(output) for output in shown])],
        )
        nbformat.validate(book)
        assert orjson.loads(orjson.dumps(shown)) == shown
        return shown

    @property
    def texts(self) -> list[str]:
        """The text of each output."""
        return [output["text"] if "text" in output else output["data"]["text/plain"] for output in self.shown]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def test_a_cell_shows_nothing_at_first(kernel: Kernel) -> None:
    assert kernel.shown == []
    assert not kernel.area.truncated


# -- streams ---------------------------------------------------------------------------------------------------


def test_text_of_one_stream_is_joined(kernel: Kernel) -> None:
    kernel.says(stream("hel"), stream("lo\n"), stream("world\n"))
    assert kernel.shown == [{"output_type": "stream", "name": "stdout", "text": "hello\nworld\n"}]


def test_a_streaming_client_gets_only_new_text(kernel: Kernel) -> None:
    events = kernel.says(stream("hel"), stream("lo"))
    assert events == [
        {"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": text}}
        for text in ("hel", "lo")
    ]


def test_two_streams_stay_apart_and_in_order(kernel: Kernel) -> None:
    kernel.says(stream("a"), stream("b", "stderr"), stream("c"), stream("d"))
    assert [(output["name"], output["text"]) for output in kernel.shown] == [
        ("stdout", "a"),
        ("stderr", "b"),
        ("stdout", "cd"),
    ]


def test_text_after_a_display_is_a_new_output(kernel: Kernel) -> None:
    kernel.says(stream("a"), display("b"), stream("c"))
    assert kernel.texts == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["stdin", "", None, 1, [], {}, ["stdout"]])
def test_a_stream_with_an_unknown_name_is_left_out(kernel: Kernel, name: object) -> None:
    assert kernel.says(stream("x", name), stream("y")) == [
        None,
        {"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": "y"}},
    ]


@pytest.mark.parametrize("text", [None, 1, [], ["a"], {}])
def test_text_that_is_no_string_is_left_out(kernel: Kernel, text: object) -> None:
    assert kernel.says(stream(text)) == [None]
    assert kernel.shown == []


# -- displays, results, errors ---------------------------------------------------------------------------------


def test_a_display_is_shown(kernel: Kernel) -> None:
    assert kernel.says(display("hi")) == [{"type": "output", "output": kernel.shown[0]}]
    assert kernel.shown == [{"output_type": "display_data", "data": {"text/plain": "hi"}, "metadata": {}}]


def test_a_result_carries_its_number(kernel: Kernel) -> None:
    kernel.says(result("2", 7))
    assert kernel.shown == [
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}, "execution_count": 7}
    ]


@pytest.mark.parametrize("count", [None, -1, 1.5, "7", True, [7]])
def test_an_invalid_execution_count_becomes_null(kernel: Kernel, count: object) -> None:
    kernel.says(result("2", count))
    assert kernel.shown[0]["execution_count"] is None


def test_an_error_is_shown_with_its_traceback(kernel: Kernel) -> None:
    kernel.says(stream("before"), error("KeyError", "'x'"))
    assert kernel.shown[1] == {
        "output_type": "error",
        "ename": "KeyError",
        "evalue": "'x'",
        "traceback": ["KeyError: 'x'"],
    }


def test_messages_without_output_are_ignored(kernel: Kernel) -> None:
    assert kernel.says(busy(), idle(), Saying("comm_open", {"data": {}}), Saying("", {})) == [None] * 4
    assert kernel.shown == []


@pytest.mark.parametrize(
    ("mime", "sent", "shown"),
    [
        ("text/plain", "a", "a"),
        ("text/plain", ["a\n", "b"], "a\nb"),
        ("text/html", {"a": 1}, '{"a":1}'),
        ("image/png", None, "null"),
        ("text/plain", [1, "b"], '[1,"b"]'),
        ("application/json", {"a": [1, None]}, {"a": [1, None]}),
        ("application/vnd.vegalite.v5+json", [1], [1]),
        ("application/json", "text", "text"),
        ("text/x+json", {"a": 1}, '{"a":1}'),
        ("application/jsonish", [1], "[1]"),
        ("", True, "true"),
    ],
)
def test_values_get_the_form_that_their_mimetype_allows(kernel: Kernel, mime: str, sent: Any, shown: Any) -> None:
    kernel.says(Saying("display_data", {"data": {mime: sent}, "metadata": {}}))
    assert kernel.shown[0]["data"] == {mime: shown}


# -- clear_output ----------------------------------------------------------------------------------------------


def test_clearing_empties_the_cell_at_once(kernel: Kernel) -> None:
    assert kernel.says(stream("old"), clear(wait=False))[1] == {"type": "clear_output", "wait": False}
    assert kernel.shown == []
    kernel.says(stream("new"))
    assert kernel.texts == ["new"]


def test_clearing_may_wait_for_the_next_output(kernel: Kernel) -> None:
    assert kernel.says(stream("old"), clear(wait=True))[1] == {"type": "clear_output", "wait": True}
    assert kernel.texts == ["old"]
    kernel.says(stream("new"))
    assert kernel.texts == ["new"]


def test_waiting_twice_clears_once(kernel: Kernel) -> None:
    kernel.says(stream("1"), clear(wait=True), clear(wait=True), display("2"), display("3"))
    assert kernel.texts == ["2", "3"]


def test_clearing_at_once_cancels_a_waiting_clear(kernel: Kernel) -> None:
    kernel.says(stream("1"), clear(wait=True), clear(wait=False), stream("2"), stream("3"))
    assert kernel.texts == ["23"]


@pytest.mark.parametrize("wait", [None, 1, "true", []])
def test_only_the_value_true_makes_clear_output_wait(kernel: Kernel, wait: object) -> None:
    kernel.says(stream("old"), Saying("clear_output", {"wait": wait}))
    assert kernel.shown == []


# -- displays that change --------------------------------------------------------------------------------------


def change(kernel: Kernel, text: str, display_id: str, size: int = 10) -> bool:
    return kernel.area.update(display_id, {"text/plain": text}, {}, size)


def test_an_updated_display_keeps_its_place(kernel: Kernel) -> None:
    kernel.says(display("0 %", "bar"), stream("text"))
    assert change(kernel, "100 %", "bar")
    assert kernel.texts == ["100 %", "text"]


def test_an_update_changes_all_displays_with_the_id(kernel: Kernel) -> None:
    kernel.says(display("a", "x"), display("b", "y"), display("c", "x"), result("d", 1, "x"))
    assert change(kernel, "new", "x")
    assert kernel.texts == ["new", "b", "new", "new"]


def test_an_unknown_display_changes_nothing(kernel: Kernel) -> None:
    kernel.says(display("a", "x"), display("b"))
    assert not change(kernel, "new", "y")
    assert kernel.texts == ["a", "b"]


def test_a_display_id_is_not_part_of_the_output(kernel: Kernel) -> None:
    event = kernel.says(display("a", "x"))[0]
    assert "display_id" not in str(kernel.shown)
    assert "display_id" not in str(event)


def test_add_ignores_updates_of_displays(kernel: Kernel) -> None:
    kernel.says(display("a", "x"))
    assert kernel.says(update("b", "x")) == [None]
    assert kernel.texts == ["a"]


@pytest.mark.parametrize("transient", [None, [], "x", {"display_id": None}, {"display_id": ["x"]}, {"display_id": {}}])
def test_a_display_without_a_usable_id_is_still_shown(kernel: Kernel, transient: object) -> None:
    kernel.says(Saying("display_data", {"data": {"text/plain": "a"}, "transient": transient}))
    assert kernel.texts == ["a"]


# -- bounds ----------------------------------------------------------------------------------------------------


def test_output_up_to_the_limit_is_kept() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(stream("12345"), stream("67890"))
    assert kernel.texts == ["1234567890"]
    assert not kernel.area.truncated


def test_output_beyond_the_limit_is_left_out() -> None:
    kernel = Kernel(max_bytes=10)
    assert kernel.says(stream("12345"), stream("678901"))[1] is None
    assert kernel.texts == ["12345"]
    assert kernel.area.truncated


def test_nothing_is_added_after_truncation() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(stream("1"), stream("2" * 10))
    assert kernel.says(stream("3"), display("4"), error(), clear(wait=False)) == [None] * 4
    assert kernel.texts == ["1"]


def test_text_is_measured_in_bytes() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(stream("äöü"), stream("äöü"))
    assert kernel.texts == ["äöü"]
    assert kernel.area.truncated


@pytest.mark.parametrize("saying", [display("x" * 2000), result("x" * 2000), error("x" * 2000)])
def test_every_kind_of_output_is_bounded(saying: Saying) -> None:
    kernel = Kernel(max_bytes=1000)
    assert kernel.says(saying) == [None]
    assert kernel.area.truncated
    roomy = Kernel(max_bytes=10_000)
    assert roomy.says(saying) != [None]


def test_cleared_output_still_counts() -> None:
    kernel = Kernel(max_bytes=100)
    for _ in range(100):
        kernel.says(stream("0123456789"), clear(wait=False))
    assert kernel.area.truncated


def test_updates_of_a_display_count() -> None:
    kernel = Kernel(max_bytes=1000)
    kernel.says(display("a", "x"))
    assert [change(kernel, "b", "x", size=300) for _ in range(4)] == [True, True, False, False]
    assert kernel.area.truncated


def test_an_update_counts_for_each_display_that_it_changes() -> None:
    kernel = Kernel(max_bytes=2000)
    kernel.says(*[display("a", "x")] * 4)
    assert not change(kernel, "b", "x", size=500)
    assert kernel.texts == ["a"] * 4


def test_size_counts_only_kept_output() -> None:
    kernel = Kernel()
    kernel.says(stream("12345"))
    assert kernel.area.size == 5 + OUTPUT_BYTES
    kernel.says(stream("678"))
    assert kernel.area.size == 8 + OUTPUT_BYTES + PIECE_BYTES
    kernel.says(clear(wait=True))
    assert kernel.area.size == 8 + OUTPUT_BYTES + PIECE_BYTES
    kernel.says(display("a", "x"))
    change(kernel, "b", "x", size=10)
    assert kernel.area.size == 10 + OUTPUT_BYTES
    kernel.says(clear(wait=False))
    assert kernel.area.size == 0


def test_small_messages_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_MESSAGES", 10)
    kernel = Kernel()
    events = kernel.says(*[stream("x"), clear(wait=False)] * 10)
    assert len([event for event in events if event]) == 10
    assert kernel.area.truncated


def test_empty_texts_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_MESSAGES", 10)
    events = Kernel(max_bytes=0).says(*[stream("")] * 20)
    assert len([event for event in events if event]) == 10


# -- arbitrary messages ----------------------------------------------------------------------------------------

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = {
    "name": JSON | st.just("stdout"),
    "text": JSON,
    "data": JSON | st.dictionaries(st.text() | st.sampled_from(["text/plain", "application/x+json"]), JSON),
    "metadata": JSON,
    "transient": JSON | st.fixed_dictionaries({}, optional={"display_id": JSON | st.just("x")}),
    "execution_count": JSON,
    "ename": JSON,
    "evalue": JSON,
    "traceback": JSON | st.lists(JSON),
    "wait": JSON,
}
TYPES = ["stream", "display_data", "execute_result", "error", "clear_output", "status", "update_display_data"]
SAYINGS = st.builds(Saying, st.sampled_from(TYPES) | st.text(), st.fixed_dictionaries({}, optional=FIELDS))


@settings(max_examples=25)
@given(st.lists(SAYINGS, max_size=8))
def test_outputs_are_valid_for_arbitrary_messages(sayings: list[Saying]) -> None:
    kernel = Kernel(max_bytes=4000)
    for event in kernel.says(*sayings):
        assert event is None or orjson.dumps(event)
    change(kernel, "new", "x")
    assert isinstance(kernel.shown, list)
    assert 0 <= kernel.area.size <= 4000 + len(sayings) * OUTPUT_BYTES


def test_the_size_of_nearly_empty_outputs_is_their_memory() -> None:
    kernel = Kernel(max_bytes=10**9)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2000):
        kernel.says(display(str(number), f"id-{number}"))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / 3 < kernel.area.size < grown * 3
