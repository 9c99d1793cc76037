"""The kernel's description of variables runs no code of the user's, and is bounded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from kernel_image.python_kernel.variables import (
    CELL,
    COLUMNS,
    ENTRIES,
    LISTED,
    LONG,
    NAME,
    ROWS,
    SHORT,
    described,
    detailed,
    listed,
    preview,
)

MANY = 10**6


class CodeRan(BaseException):
    """Raised by code that the description must not run."""


def _raise(*_arguments: Any) -> Any:
    raise CodeRan


class Hostile:
    """An object all of whose methods are traps."""

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = __bool__ = __sizeof__ = __getattr__ = _raise
    __class__ = property(_raise)
    shape = property(_raise)

    def __getattribute__(self, name: str) -> Any:
        raise CodeRan

    def __init__(self) -> None:
        object.__setattr__(self, "kept", 5)


class Shy:
    """An object that pandas accepts, and that must not be printed."""

    __repr__ = __str__ = _raise


class Texts(str):
    """A text with traps."""

    __slots__ = ()
    __repr__ = __len__ = __getitem__ = _raise


@dataclass
class Point:
    """An ordinary object."""

    x: int = 1
    y: str = "a"


def _array(value: Any) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


def _of_metaclass() -> Any:
    """Return a class whose own attributes are traps. pytest would look at it in the module."""

    class Metaclass(type):
        def __getattribute__(cls, name: str) -> Any:
            raise CodeRan

        __repr__ = _raise

    class OfMetaclass(metaclass=Metaclass):
        __dict__ = property(_raise)

    return OfMetaclass


def _instance() -> Any:
    return _of_metaclass()()


HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (Hostile, "Hostile: kept=5>"),
    "class": (_of_metaclass, "OfMetaclass>"),
    "instance": (_instance, "OfMetaclass>"),
    "text": (lambda: Texts("x"), "Texts>"),
    "in a list": (lambda: [Hostile()], "Hostile: kept=5>]"),
    "in an array": (lambda: _array(Hostile()), "Hostile: kept=5>], shape=(1,), dtype=object)"),
    "in an attribute": (lambda: Point(Hostile()), "Hostile: kept=5>, y='a'>"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "ending"), HOSTILE.values(), ids=HOSTILE)
def test_no_code_of_a_variables_class_runs(make: Callable[[], Any], ending: str) -> None:
    value = make()
    assert str(listed({"value": value}, {})["variables"][0]["preview"]).endswith(ending)
    assert str(detailed("value", value)["preview"]).endswith(ending)


def test_a_tables_cells_are_not_printed_by_their_own_code() -> None:
    assert detailed("table", pd.DataFrame({"a": [Shy()]}))["rows"] == [[f"<{Shy.__module__}.Shy>"]]


def test_the_traps_are_traps() -> None:
    """The control: each of them raises when it is used as usual."""
    kind = _of_metaclass()
    for use in (
        lambda: repr(Hostile()),
        lambda: kind.__name__,
        lambda: len(Texts("x")),
        lambda: vars(kind()),
    ):
        with pytest.raises(CodeRan):
            use()


WRITTEN = [
    (None, "NoneType", "None"),
    (True, "bool", "True"),
    (10**MANY, "int", "<int of 3321929 bits>"),
    ("a'b", "str", '"a\'b"'),
    ("\ud800", "str", r"'\ud800'"),
    ((1,), "tuple", "(1,)"),
    (set(), "set", "set()"),
    (frozenset({1}), "frozenset", "frozenset({1})"),
    (Counter("aab"), "collections.Counter", "Counter({'a': 2, 'b': 1})"),
    ({1: {2: {3: {4: {5: 6}}}}}, "dict", "{1: {2: {3: {4: {…}}}}}"),
    (np.float64(2), "numpy.float64", "np.float64(2.0)"),
    (np.zeros((2, 1)), "numpy.ndarray", "array([0.0, 0.0], shape=(2, 1), dtype=float64)"),
    (pd.Timestamp("2020-01-01"), None, "Timestamp('2020-01-01 00:00:00')"),
    (pd.Series([1, 2]), "pandas.Series", "[1, 2]"),
    (pl.Series([1, 2]), "polars.series.series.Series", "[1, 2]"),
    (np, "module", "<module numpy>"),
    (len, "builtin_function_or_method", "<built-in function len>"),
    (Point, "type", f"<class {Point.__module__}.Point>"),
]


@pytest.mark.parametrize(("value", "kind", "text"), WRITTEN, ids=[text for _, _, text in WRITTEN])
def test_values_are_written_as_python_writes_them(value: Any, kind: str | None, text: str) -> None:
    told = described("value", value)
    assert told["preview"] == text
    assert kind in (None, told["type"]) or told["type"].endswith(f".{kind.rpartition('.')[2]}")


def test_a_list_that_contains_itself_ends() -> None:
    own: list[Any] = [1]
    own.append(own)
    assert preview(own, SHORT) == "[1, [1, [1, [1, […]]]]]"


LARGE = {
    "text": "x" * MANY,
    "bytes": bytes(MANY),
    "list": list(range(MANY)),
    "lists": [[list(range(1000))] * 1000] * 1000,
    "dict": dict.fromkeys(range(MANY)),
    "array": np.zeros((1000, 1000)),
    "not in one piece": np.zeros((2000, 2000))[::2, ::2],
    "table": pd.DataFrame(np.zeros((1000, 1000))),
    "long names": pd.DataFrame({"n" * MANY: ["x" * MANY]}),
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_a_large_value_is_described_in_bounds(value: Any) -> None:
    told = detailed("n" * MANY, value)
    assert len(told["name"]) == NAME
    assert len(told["preview"]) <= LONG
    assert len(described("n", value)["preview"]) <= SHORT
    assert len(told.get("entries", ())) <= ENTRIES
    assert len(told.get("columns", ())) <= COLUMNS
    assert len(told.get("rows", ())) <= ROWS
    assert all(len(cell) <= CELL for row in told.get("rows", ()) for cell in row)
    assert all(len(column["name"]) <= NAME for column in told.get("columns", ()))


def test_a_list_of_variables_is_bounded_and_says_how_many_there_are() -> None:
    found = listed({f"v{number}": number for number in range(LISTED + 5)}, {})
    assert (len(found["variables"]), found["total"]) == (LISTED, LISTED + 5)


def test_only_variables_of_cells_are_listed_sorted_by_name() -> None:
    own = {"b": 1, "A": 2, "_hidden": 3, "In": [], "exit": 4}
    hidden = {"In": own["In"], "exit": "the shell's"}
    assert [variable["name"] for variable in listed(own, hidden)["variables"]] == ["A", "b", "exit"]


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": [1, 2], "t": pd.to_datetime(["2020-01-01", None])}),
        pl.DataFrame({"a": [1, 2], "t": ["x", None]}),
    ],
    ids=["pandas", "polars"],
)
def test_a_table_is_shown_with_its_columns_and_rows(table: Any) -> None:
    told = detailed("table", table)
    assert told["shape"] == [2, 2]
    assert (told["columns"][0]["name"], told["columns"][0]["type"].lower()) == ("a", "int64")
    assert [row[0] for row in told["rows"]] == ["1", "2"]
    assert told["rows"][0][1] in ("2020-01-01 00:00:00", "x")


def test_entries_are_those_of_a_collection_or_the_attributes_of_an_object() -> None:
    def entries(value: Any) -> list[tuple[str, str]]:
        return [(entry["name"], entry["preview"]) for entry in detailed("value", value)["entries"]]

    assert entries({"a": 1, 2: "b"}) == [("'a'", "1"), ("2", "'b'")]
    assert entries(["x"]) == [("0", "'x'")]
    assert entries(Point()) == [("x", "1"), ("y", "'a'")]
    assert "entries" not in detailed("value", 5)


def test_a_collection_that_another_thread_changes_is_described() -> None:
    changing: dict[int, int] = {}
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            changing[len(changing) % 1000] = 1
            changing.pop(0, None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            assert described("changing", changing)["type"] == "dict"
    finally:
        ended.set()
        thread.join()
