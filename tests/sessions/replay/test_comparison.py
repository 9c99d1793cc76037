"""What counts as a difference between a cell's outputs and those that it had before."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.replay.comparison import DIFFERENCES_MAX, TEXT_MAX, Difference, differences


def stream(text: Any, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def display(content: Any, mime: str = "text/plain", kind: str = "display_data", **fields: Any) -> dict[str, Any]:
    return {"output_type": kind, "data": {mime: content}, "metadata": {}} | fields


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([stream("a\nb\n")], [stream("a\n"), stream("b\n")]),
        ([stream(["a\n", "b\n"])], [stream("a\nb\n")]),
        ([stream("out"), stream("err", "stderr")], [stream("err", "stderr"), stream("out")]),
        ([stream("<f at 0x7f00aa11bb22>")], [stream("<f at 0x7f99cc33dd44>")]),
        ([display("1", kind="execute_result", execution_count=3)], [display("1", execution_count=9)]),
        (
            [{"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": ["line 1"]}],
            [{"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": ["line 2"]}],
        ),
    ],
)
def test_what_differs_without_a_cause_in_the_code_is_the_same(before: Any, after: Any) -> None:
    assert differences(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([stream("a\nb 1\n")], [stream("a\nb 2\n")], Difference("stdout", "b 1\n", "b 2\n")),
        ([], [stream("x", "stderr")], Difference("stderr", None, "x")),
        ([display([1, 2], "application/json")], [], Difference("display 1: application/json", "[1,2]", None)),
        (
            [{"output_type": "error", "ename": "KeyError", "evalue": "'a'"}],
            [{"output_type": "error", "ename": "KeyError", "evalue": "'b'"}],
            Difference("error", "KeyError: 'a'", "KeyError: 'b'"),
        ),
        ([stream("at 0x12")], [stream("at 0x13")], Difference("stdout", "at 0x12", "at 0x13")),
    ],
)
def test_what_differs_is_told_from_its_first_line(before: Any, after: Any, told: Difference) -> None:
    assert differences(before, after) == [told]


def test_differences_of_large_outputs_are_short() -> None:
    before = [stream("x" * 10_000_000 + "1")] + [display(str(number)) for number in range(100)]
    found = differences(before, [stream("x" * 10_000_000 + "2")])
    assert len(found) == DIFFERENCES_MAX
    assert (found[0].before or "")[-1] == "1"
    assert len(found[0].after or "") <= TEXT_MAX + 2
