"""What a notebook shows below one cell, told as a conversation with its kernel."""

from __future__ import annotations

from typing import Any

import nbformat
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import v4

from sessions import outputs
from sessions.outputs import Event, OutputArea
from tests.fakes import Saying, busy, clear, display, error, idle, result, stream, update

Json = dict[str, Any]


class Kernel:
    """Whose messages end up below one cell."""

    def __init__(self, max_bytes: int = 100_000) -> None:
        self.area = OutputArea(max_bytes)

    def says(self, *sayings: Saying) -> list[Event | None]:
        return [self.area.feed(saying.to("cell")) for saying in sayings]

    @property
    def shown(self) -> list[Json]:
        """The outputs, which are valid ones at any time."""
        shown = self.area.outputs()
        book = v4.new_notebook(
            cells=[v4.new_code_cell("x", outputs=[nbformat.from_dict(output) for output in shown])],
        )
        nbformat.validate(book)
        assert orjson.loads(orjson.dumps(shown)) == shown
        return shown

    @property
    def texts(self) -> list[str]:
        """The text of every output."""
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


def test_a_streaming_client_gets_only_what_is_new(kernel: Kernel) -> None:
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


def test_text_after_a_display_begins_anew(kernel: Kernel) -> None:
    kernel.says(stream("a"), display("b"), stream("c"))
    assert kernel.texts == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["stdin", "", None, 1, [], {}, ["stdout"]])
def test_a_stream_of_no_name_we_know_is_left_out(kernel: Kernel, name: object) -> None:
    assert kernel.says(stream("x", name), stream("y")) == [
        None,
        {"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": "y"}},
    ]


@pytest.mark.parametrize("text", [None, 1, [], ["a"], {}])
def test_text_that_is_none_is_left_out(kernel: Kernel, text: object) -> None:
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
def test_a_number_that_is_none_becomes_null(kernel: Kernel, count: object) -> None:
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


def test_what_is_no_output_is_none(kernel: Kernel) -> None:
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
def test_a_value_takes_the_form_its_mimetype_allows(kernel: Kernel, mime: str, sent: Any, shown: Any) -> None:
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


def test_clearing_at_once_settles_what_waits(kernel: Kernel) -> None:
    kernel.says(stream("1"), clear(wait=True), clear(wait=False), stream("2"), stream("3"))
    assert kernel.texts == ["23"]


@pytest.mark.parametrize("wait", [None, 1, "true", []])
def test_only_true_waits(kernel: Kernel, wait: object) -> None:
    kernel.says(stream("old"), Saying("clear_output", {"wait": wait}))
    assert kernel.shown == []


# -- displays that change --------------------------------------------------------------------------------------


def change(kernel: Kernel, text: str, display_id: str, size: int = 10) -> bool:
    return kernel.area.update(display_id, {"text/plain": text}, {}, size)


def test_a_display_changes_where_it_stands(kernel: Kernel) -> None:
    kernel.says(display("0 %", "bar"), stream("text"))
    assert change(kernel, "100 %", "bar")
    assert kernel.texts == ["100 %", "text"]


def test_every_display_of_that_id_changes(kernel: Kernel) -> None:
    kernel.says(display("a", "x"), display("b", "y"), display("c", "x"), result("d", 1, "x"))
    assert change(kernel, "new", "x")
    assert kernel.texts == ["new", "b", "new", "new"]


def test_an_unknown_display_changes_nothing(kernel: Kernel) -> None:
    kernel.says(display("a", "x"), display("b"))
    assert not change(kernel, "new", "y")
    assert kernel.texts == ["a", "b"]


def test_an_id_is_not_shown(kernel: Kernel) -> None:
    event = kernel.says(display("a", "x"))[0]
    assert "display_id" not in str(kernel.shown)
    assert "display_id" not in str(event)


def test_an_update_is_none_of_one_cell_s_business(kernel: Kernel) -> None:
    kernel.says(display("a", "x"))
    assert kernel.says(update("b", "x")) == [None]
    assert kernel.texts == ["a"]


@pytest.mark.parametrize("transient", [None, [], "x", {"display_id": None}, {"display_id": ["x"]}, {"display_id": {}}])
def test_a_display_without_a_usable_id_is_still_shown(kernel: Kernel, transient: object) -> None:
    kernel.says(Saying("display_data", {"data": {"text/plain": "a"}, "transient": transient}))
    assert kernel.texts == ["a"]


# -- bounds ----------------------------------------------------------------------------------------------------


def test_as_much_as_is_allowed_is_kept() -> None:
    kernel = Kernel(max_bytes=10)
    kernel.says(stream("12345"), stream("67890"))
    assert kernel.texts == ["1234567890"]
    assert not kernel.area.truncated


def test_one_byte_more_is_left_out() -> None:
    kernel = Kernel(max_bytes=10)
    assert kernel.says(stream("12345"), stream("678901"))[1] is None
    assert kernel.texts == ["12345"]
    assert kernel.area.truncated


def test_after_too_much_nothing_is_taken() -> None:
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


def test_what_was_cleared_still_counts() -> None:
    kernel = Kernel(max_bytes=100)
    for _ in range(100):
        kernel.says(stream("0123456789"), clear(wait=False))
    assert kernel.area.truncated


def test_changes_of_a_display_count() -> None:
    kernel = Kernel(max_bytes=1000)
    kernel.says(display("a", "x"))
    assert [change(kernel, "b", "x", size=300) for _ in range(4)] == [True, True, False, False]
    assert kernel.area.truncated


def test_a_change_counts_for_every_display_it_reaches() -> None:
    kernel = Kernel(max_bytes=2000)
    kernel.says(*[display("a", "x")] * 4)
    assert not change(kernel, "b", "x", size=500)
    assert kernel.texts == ["a"] * 4


def test_size_is_what_is_kept() -> None:
    kernel = Kernel()
    kernel.says(stream("12345"))
    assert kernel.area.size == 5
    kernel.says(clear(wait=True))
    assert kernel.area.size == 5
    kernel.says(display("a", "x"))
    change(kernel, "b", "x", size=10)
    assert kernel.area.size == 10
    kernel.says(clear(wait=False))
    assert kernel.area.size == 0


def test_messages_are_counted_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_MESSAGES", 10)
    kernel = Kernel()
    events = kernel.says(*[stream("x"), clear(wait=False)] * 10)
    assert len([event for event in events if event]) == 10
    assert kernel.area.truncated


def test_empty_text_is_no_way_around_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_MESSAGES", 10)
    events = Kernel(max_bytes=0).says(*[stream("")] * 20)
    assert len([event for event in events if event]) == 10


# -- whatever it says ------------------------------------------------------------------------------------------

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
def test_whatever_a_kernel_says_its_outputs_are_valid(sayings: list[Saying]) -> None:
    kernel = Kernel(max_bytes=4000)
    for event in kernel.says(*sayings):
        assert event is None or orjson.dumps(event)
    change(kernel, "new", "x")
    assert isinstance(kernel.shown, list)
    assert 0 <= kernel.area.size <= 4000
