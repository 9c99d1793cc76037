"""Outcomes of programs: any answer of a program, forged ones too, gives one correct outcome."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.errors import ExecutionTimeout, KernelDied, OutOfMemory, SessionClosed, SessionError
from sessions.model.values import ExecutionResult, StateChange, Status
from sessions.programs.artifacts import ALL_BYTES_MAX, BYTES_MAX, chosen, mime_type
from sessions.programs.outcomes import outcome_of
from sessions.programs.program import Ending, Outcome, Returned

ANSWER: dict[str, Any] = {"exit_code": 0, "value": "1", "error": "", "unread": None, "artifacts": False}
OUTPUTS = [
    {"output_type": "stream", "name": "stdout", "text": "out"},
    {"output_type": "stream", "name": "stderr", "text": "err\n"},
    {"output_type": "stream", "name": "stdout", "text": "put"},
    {"output_type": "display_data", "data": {"text/plain": "shown"}, "metadata": {}},
]


def ended(answer: Any = None, status: Status = Status.OK, error: SessionError | None = None, **more: Any) -> Outcome:
    """Return the outcome of a cell that ended like this."""
    told: dict[str, Any] = {"outputs": OUTPUTS, "truncated": False} | more
    about: dict[str, Any] = {
        "duration": 0.5,
        "state": StateChange.PRESERVED,
        "state_reason": None,
        "incarnation": 1,
        "error": error,
    }
    return outcome_of(ExecutionResult(status=status, execution_count=1, answer=answer, **about, **told))[0]


def test_a_value_is_returned() -> None:
    outcome = ended(ANSWER | {"value": '{"a": [1, null]}'})
    assert (outcome.ending, outcome.exit_code, outcome.returned) == (Ending.OK, 0, Returned({"a": [1, None]}))
    assert (outcome.stdout, outcome.stderr, outcome.duration) == ("output", "err\n", 0.5)


def test_a_returned_null_differs_from_no_return_value() -> None:
    assert ended(ANSWER | {"value": "null"}).returned == Returned(None)
    assert ended(ANSWER | {"value": None}).returned is None


def test_an_error_is_appended_to_stderr() -> None:
    outcome = ended(ANSWER | {"exit_code": 3, "error": "Traceback"})
    assert (outcome.ending, outcome.exit_code, outcome.returned) == (Ending.ERROR, 3, None)
    assert outcome.stderr == "err\nTraceback"


def test_code_that_could_not_be_parsed_has_a_reason() -> None:
    assert ended(ANSWER | {"exit_code": 1, "unread": "invalid syntax"}).unread == "invalid syntax"


@pytest.mark.parametrize(
    ("status", "error", "ending", "exit_code"),
    [
        (Status.TIMEOUT, ExecutionTimeout(), Ending.TIMEOUT, 124),
        (Status.DIED, OutOfMemory(), Ending.OUT_OF_MEMORY, 137),
        (Status.DIED, KernelDied(exit_code=3), Ending.DIED, 3),
        (Status.DIED, KernelDied(exit_code=0), Ending.DIED, 1),
        (Status.DIED, KernelDied(exit_code=None), Ending.DIED, 1),
        (Status.DIED, SessionClosed(), Ending.DIED, 1),
    ],
)
@pytest.mark.parametrize("answer", [None, ANSWER])
def test_what_the_gateway_saw_overrides_the_programs_answer(
    answer: Any, status: Status, error: SessionError, ending: Ending, exit_code: int
) -> None:
    outcome = ended(answer, status, error)
    assert (outcome.ending, outcome.exit_code, outcome.returned) == (ending, exit_code, None)
    assert outcome.error is error


FORGED: list[Any] = [
    None,
    1,
    "x",
    [],
    {},
    ANSWER | {"exit_code": "0"},
    ANSWER | {"exit_code": None},
    ANSWER | {"value": 1},
    ANSWER | {"error": None},
    ANSWER | {"unread": 1},
    ANSWER | {"artifacts": "yes"},
    {name: value for name, value in ANSWER.items() if name != "error"},
]


@pytest.mark.parametrize("answer", FORGED)
@pytest.mark.parametrize("status", [Status.OK, Status.ERROR, Status.INTERRUPTED])
def test_a_program_without_a_valid_answer_is_an_error(answer: Any, status: Status) -> None:
    outcome = ended(answer, status)
    assert (outcome.ending, outcome.exit_code, outcome.returned) == (Ending.ERROR, 1, None)
    assert "without an answer" in outcome.stderr


def test_without_an_answer_the_kernels_error_is_in_stderr() -> None:
    raised = [{"output_type": "error", "ename": "MemoryError", "evalue": "too much", "traceback": []}]
    assert ended(None, Status.ERROR, outputs=raised).stderr == "MemoryError: too much\n"


@pytest.mark.parametrize(
    "value", ["NaN", "[Infinity]", "1e999", "-1e999", "{", "", '"\\ud800"', "[" * 100_000, "1" * 5000, "1 2"]
)
def test_a_value_that_cannot_be_sent_counts_as_no_return_value(value: str) -> None:
    outcome = ended(ANSWER | {"value": value})
    assert (outcome.ending, outcome.returned) == (Ending.OK, None)


def test_a_large_number_keeps_all_its_digits() -> None:
    assert ended(ANSWER | {"value": str(2**100)}).returned == Returned(2**100)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_invalid_answer_is_an_error(answer: Any) -> None:
    assert ended(answer).ending is Ending.ERROR


# -- artifacts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.png", "image/png"),
        ("a.JPG", "image/jpeg"),
        ("a.b.Json", "application/json"),
        ("a.txt", None),
        (".png", None),
        (".a.png", None),
        ("png", None),
        ("a.png.exe", None),
    ],
)
def test_only_some_kinds_of_files_are_handed_out(name: str, kind: str | None) -> None:
    assert mime_type(name) == kind


def entry(name: str, size: int = 1, kind: str = "file") -> dict[str, Any]:
    return {"name": name, "size": size, "type": kind}


def names(*entries: dict[str, Any]) -> tuple[list[str], bool]:
    taken, complete = chosen(list(entries))
    return [entry["name"] for entry in taken], complete


def test_artifacts_are_sorted_by_name_without_links_and_empty_files() -> None:
    others = [entry("c.csv", kind="link"), entry("d.csv", kind="directory"), entry("e.csv", 0), entry("f.txt")]
    assert names(entry("b.csv"), entry("a.csv"), *others) == (["a.csv", "b.csv"], True)


def test_an_eleventh_artifact_is_left_out_and_reported() -> None:
    taken, complete = names(*(entry(f"{number:02}.csv") for number in range(11)))
    assert (len(taken), complete) == (10, False)
    assert names(*(entry(f"{number:02}.csv") for number in range(10)))[1]


def test_the_size_of_artifacts_is_limited_singly_and_in_total() -> None:
    assert names(entry("a.csv", BYTES_MAX)) == (["a.csv"], True)
    assert names(entry("a.csv", BYTES_MAX + 1), entry("b.csv")) == (["b.csv"], False)
    taken, complete = names(*(entry(f"{number}.csv", BYTES_MAX) for number in range(5)))
    assert (len(taken), complete) == (ALL_BYTES_MAX // BYTES_MAX, False)
