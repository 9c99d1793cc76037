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
from sessions.cells.outputs import OUTPUT_BYTES, PIECE_BYTES, Event, OutputArea, Place, joined
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


def change(kernel: Kernel, text: str, display_id: str) -> Event | None:
    return kernel.area.update(update(text, display_id).to("cell"))


def test_an_updated_display_keeps_its_place(kernel: Kernel) -> None:
    kernel.says(display("0 %", "bar"), stream("text"))
    assert change(kernel, "100 %", "bar")
    assert kernel.texts == ["100 %", "text"]


def test_an_update_changes_all_displays_with_the_id(kernel: Kernel) -> None:
    kernel.says(display("a", "x"), display("b", "y"), display("c", "x"), result("d", 1, "x"))
    assert change(kernel, "new", "x")
    assert kernel.texts == ["new", "b", "new", "new"]


def test_a_display_that_is_shown_again_after_an_update_has_its_own_content_until_the_next(kernel: Kernel) -> None:
    kernel.says(display("a", "x"))
    change(kernel, "b", "x")
    kernel.says(display("c", "x"), display("d"))
    assert kernel.texts == ["b", "c", "d"]
    change(kernel, "e", "x")
    assert kernel.texts == ["e", "e", "d"]
    assert kernel.area.size == 2 * update("e", "x").to("cell").size + display("d").to("cell").size + 3 * OUTPUT_BYTES


def test_content_that_an_update_has_replaced_is_freed(kernel: Kernel) -> None:
    kernel.says(*[display("x" * 20_000, "bar")] * 3)
    change(kernel, "b", "bar")
    assert "x" * 100 not in str(kernel.area._outputs._packed)


def test_an_unknown_display_changes_nothing(kernel: Kernel) -> None:
    kernel.says(display("a", "x"), display("b"))
    assert not change(kernel, "new", "y")
    assert kernel.texts == ["a", "b"]


def test_a_display_id_is_not_part_of_the_output(kernel: Kernel) -> None:
    kernel.says(display("a", "x"))
    assert "display_id" not in str(kernel.shown)


def test_a_streaming_client_gets_the_ids_of_the_displays_that_it_can_update(kernel: Kernel) -> None:
    shown, result_, other = kernel.says(display("a", "x"), result("b", 1, "y"), display("c"))
    assert [event and event.get("display_id") for event in (shown, result_, other)] == ["x", "y", None]
    changed = change(kernel, "new", "x")
    assert changed
    assert changed["display_id"] == "x"


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


def test_output_beyond_the_limit_is_cut_and_counted() -> None:
    kernel = Kernel(max_bytes=10)
    cut, none = kernel.says(stream("12345"), stream("678901"), stream("23"))[1:]
    assert cut
    assert cut["output"]["text"] == "67890"
    assert none is None
    assert kernel.texts == ["1234567890"]
    assert (kernel.area.truncated, kernel.area.omitted) == (True, 3)


def test_text_is_measured_in_bytes_and_cut_between_characters() -> None:
    kernel = Kernel(max_bytes=11)
    kernel.says(stream("äöü"), stream("äöü"))
    assert kernel.texts == ["äöüäö"]
    assert (kernel.area.truncated, kernel.area.omitted) == (True, 2)


@pytest.mark.parametrize("saying", [display("x" * 2000), result("x" * 2000)])
def test_the_text_of_a_display_is_cut(saying: Saying) -> None:
    kernel = Kernel(max_bytes=1000)
    assert kernel.says(saying) == [{"type": "output", "output": kernel.shown[0]}]
    assert kernel.texts == ["x" * (1000 - len("text/plain"))]
    assert kernel.area.omitted == 1000 + len("text/plain")


def test_a_display_keeps_the_media_types_that_there_is_room_for() -> None:
    kernel = Kernel(max_bytes=1000)
    forms = {"image/png": "p" * 880, "text/html": "h" * 2000, "text/plain": "t" * 90, "application/json": [1] * 2000}
    kernel.says(Saying("display_data", {"data": forms, "metadata": {"text/html": {"a": 1}}}))
    assert kernel.shown[0]["data"] == {name: forms[name] for name in ("image/png", "text/plain")}
    left_out = ("text/html", "h" * 2000, "application/json", "1," * 2000 + "]", '{"text/html":{"a":1}}')
    assert kernel.area.omitted == len("".join(left_out))


def test_a_display_without_a_media_type_that_fits_is_left_out() -> None:
    kernel = Kernel(max_bytes=1000)
    assert kernel.says(Saying("display_data", {"data": {"image/png": "p" * 1001}}), stream("after"))[0] is None
    assert kernel.texts == ["after"]
    assert kernel.area.omitted == len("image/png") + 1001


def test_a_display_is_whole_if_only_its_message_is_larger_than_the_limit() -> None:
    kernel = Kernel(max_bytes=110)
    kernel.says(display("x" * 100))
    assert kernel.texts == ["x" * 100]
    assert not kernel.area.truncated


@pytest.mark.parametrize("wait", [True, False])
def test_cleared_output_makes_room_and_is_not_missing(wait: bool) -> None:  # noqa: FBT001
    kernel = Kernel(max_bytes=100)
    for number in range(1000):
        assert kernel.says(stream("x" * 200), clear(wait=wait), stream(f"frame {number}"))[-1]
    assert kernel.texts == ["frame 999"]
    assert (kernel.area.truncated, kernel.area.omitted) == (False, 0)


def test_a_replaced_display_makes_room() -> None:
    kernel = Kernel(max_bytes=1000)
    kernel.says(display("a", "x"))
    assert all(change(kernel, f"{number:500}", "x") for number in range(100))
    assert kernel.texts == [f"{99:500}"]
    assert not kernel.area.truncated


def test_an_update_counts_for_each_display_that_it_changes() -> None:
    kernel = Kernel(max_bytes=2000)
    kernel.says(*[display("a", "x")] * 4)
    change(kernel, "b" * 501, "x")
    assert kernel.texts == ["b" * (500 - len("xtext/plain"))] * 4
    assert kernel.area.truncated


# -- errors ----------------------------------------------------------------------------------------------------


def test_there_is_room_for_an_error_beyond_the_limit() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(stream("x" * 100), error("KeyError", "'y'"), stream("z"))
    assert kernel.shown[1:] == [
        {"output_type": "error", "ename": "KeyError", "evalue": "'y'", "traceback": ["KeyError: 'y'"]}
    ]
    assert kernel.area.omitted == 91


def test_errors_beyond_the_limit_are_bounded_in_number_and_the_last_one_is_shown() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(*[error(f"Error{number}") for number in range(100)])
    kernel.area.fail({"ename": "Error99", "evalue": "bad", "traceback": []})
    assert [output["ename"] for output in kernel.shown] == ["Error0", "Error99"]


def test_a_long_error_is_cut_and_says_so() -> None:
    kernel = Kernel(max_bytes=10)
    lines = ["first", *["x" * 99] * 10_000, "last"]
    kernel.says(Saying("error", {"ename": "E" * 1000, "evalue": "v" * 1_000_000, "traceback": lines}))
    shown = kernel.shown[0]
    assert (shown["traceback"][0], shown["traceback"][-1]) == ("first", "last")
    assert any("characters left out" in line for line in shown["traceback"])
    assert "characters left out" in shown["evalue"]
    assert len(str(shown)) < 100_000
    assert kernel.area.truncated


def test_a_long_error_within_the_limit_is_whole() -> None:
    kernel = Kernel(max_bytes=1_000_000)
    kernel.says(error(value="v" * 400_000))
    assert kernel.shown[0]["traceback"] == ["ValueError: " + "v" * 400_000]
    assert not kernel.area.truncated


def test_a_failure_that_is_shown_is_not_shown_twice(kernel: Kernel) -> None:
    kernel.says(error("KeyError", "'x'"))
    assert kernel.area.fail({"ename": "KeyError", "evalue": "'x'", "traceback": []}) is None
    assert kernel.area.fail({"ename": "UsageError", "evalue": "no magic", "traceback": None}) is not None
    assert [output["ename"] for output in kernel.shown] == ["KeyError", "UsageError"]


def test_a_failure_that_was_cleared_is_shown_again(kernel: Kernel) -> None:
    kernel.says(error("KeyError"), clear(wait=False))
    kernel.area.fail({"ename": "KeyError", "evalue": "'x'", "traceback": []})
    assert [output["ename"] for output in kernel.shown] == ["KeyError"]


def test_a_failure_with_a_long_name_that_is_shown_in_short_is_not_shown_twice() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(error("E" * 1_000))
    assert kernel.area.fail({"ename": "E" * 1_000, "evalue": "bad", "traceback": []}) is None


def test_of_an_error_that_is_too_large_only_what_is_shown_stays_in_memory() -> None:
    kernel = Kernel(max_bytes=10)
    tracemalloc.start()
    kernel.says(error("E" * 1_000_000))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500_000


# -- what outputs take -----------------------------------------------------------------------------------------


def test_size_counts_only_kept_output() -> None:
    kernel = Kernel()
    kernel.says(stream("12345"))
    assert kernel.area.size == 5 + OUTPUT_BYTES
    kernel.says(stream("678"))
    assert kernel.area.size == 8 + OUTPUT_BYTES + PIECE_BYTES
    kernel.says(clear(wait=True))
    assert kernel.area.size == 8 + OUTPUT_BYTES + PIECE_BYTES
    kernel.says(display("a", "x"))
    change(kernel, "b", "x")
    assert kernel.area.size == update("b", "x").to("cell").size + OUTPUT_BYTES
    kernel.says(clear(wait=False))
    assert kernel.area.size == 0


def test_small_messages_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PIECES_MAX", 10)
    kernel = Kernel()
    events = kernel.says(*[stream("x")] * 20)
    assert len([event for event in events if event]) == 10
    assert kernel.area.truncated
    assert kernel.says(clear(wait=False), stream("y"))[1]


def test_empty_texts_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PIECES_MAX", 10)
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


# -- readers ---------------------------------------------------------------------------------------------------

SAYINGS = st.sampled_from(
    [
        stream("a"),
        stream("b\n"),
        stream("c", "stderr"),
        display("1", display_id="d"),
        display("2"),
        update("3", display_id="d"),
        error("E"),
        clear(wait=False),
        clear(wait=True),
    ]
)


@settings(max_examples=300)
@given(st.lists(st.tuples(SAYINGS, st.booleans()), max_size=14))
def test_a_reader_that_looks_now_and_then_has_what_the_area_has(said: list[tuple[Saying, bool]]) -> None:
    area, place, read = OutputArea(100_000), Place(), list[Json]()
    for saying, looks in [*said, (busy(), True)]:
        _ = area.update(saying.to("cell")) if saying.type == "update_display_data" else area.add(saying.to("cell"))
        if not looks:
            continue
        fresh, later, place = area.since(place)
        read = [] if fresh else read
        for output in map(joined, later):
            streams = output["output_type"] == "stream" and read and read[-1].get("name") == output["name"]
            if streams:
                read[-1]["text"] += output["text"]
            else:
                read.append(output)
    assert read == area.outputs()


def test_a_reader_gets_each_text_once(kernel: Kernel) -> None:
    kernel.says(*(stream("x" * 100) for _ in range(10)))
    _, first, place = kernel.area.since(Place())
    kernel.says(stream("y"))
    fresh, later, _ = kernel.area.since(place)
    assert not fresh
    assert [joined(output)["text"] for output in (*first, *later)] == ["x" * 1000, "y"]
