"""JSON with very many values is refused before it is parsed; texts of any length, and their commas, are not counted."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from sessions.channels.cells import Code
from sessions.model import bounded_json
from sessions.model.bounded_json import CONTAINERS_MAX, ELEMENTS_MAX, TooManyValues, loads
from sessions.model.errors import InvalidRequest
from sessions.programs.outcomes import returned_by
from tests.fakes import Json

LISTS = b"[" + b",".join([b"[]"] * CONTAINERS_MAX) + b"]"
TOO_MANY = {
    "lists": LISTS,
    "objects": LISTS.replace(b"[]", b"{}"),
    "keys": orjson.dumps({str(number): 0 for number in range(CONTAINERS_MAX)}),
    "numbers": b"[" + b"1," * (ELEMENTS_MAX + 1) + b"1]",
    "strings": b"[" + b'"",' * (ELEMENTS_MAX + 1) + b'""]',
    "lists after a long text": b'["' + bytes([120]) * 2 * 1024**2 + b'",' + LISTS[1:],
    "lists beside a text": b'["' + rb"\"[]\\" * 10 + b'",' + LISTS[1:],
}
FEW: dict[str, Json | list[Any]] = {
    "a text of brackets": ["[{:" * CONTAINERS_MAX],
    "a text of commas, quotes and backslashes": [',\\",\\\\",' * 400_000],
    "as many lists as allowed": [[]] * (CONTAINERS_MAX - 1),
    "as many numbers as allowed": [1] * ELEMENTS_MAX,
    "a text that is longer than what is looked at first": ["[" * 3 * 1024**2],
    "keys with colons": {f"{number}:::::::::": "::" for number in range(50_000)},
}


@pytest.mark.parametrize("text", TOO_MANY.values(), ids=TOO_MANY)
def test_too_many_values_are_refused_before_they_are_parsed(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_json, "orjson", Mock(side_effect=AssertionError))
    for form in (text, bytearray(text), text.decode()):
        with pytest.raises(TooManyValues, match="it has more than 200000 lists, objects and keys, or 1000000 values"):
            loads(form)


@pytest.mark.parametrize("value", FEW.values(), ids=FEW)
def test_few_values_are_parsed_however_long_their_texts_are(value: Any) -> None:
    text = orjson.dumps(value)
    assert len(text) > CONTAINERS_MAX
    gc.disable()  # else this test itself takes seconds
    try:
        assert loads(text) == loads(bytearray(text)) == loads(text.decode()) == value
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[", b'"' * 500_000, b"[" * 500_000, b'"\\' * 300_000),
        b'{"code":"' + b"[" * (CONTAINERS_MAX + 1) + b'\\"' * 20_000,
        b'\\"a[' * 1_000_000,
        b'["' + b'\\"a[' * 1_000_000,
        b'["a"' + b'\\"a\\\\"[' * 500_000,
    ],
    ids=range(9),
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(text)


@pytest.mark.parametrize("size", [1, 4096, 4097, 8191, 8192, 8193, 12_288])
@pytest.mark.parametrize("places", [[0], [-1], [0, -1], [], range(0, 12_288, 7)])
def test_a_sign_is_counted_wherever_it_is(size: int, places: Iterable[int]) -> None:
    text = bytearray(b"x" * size)
    for place in places:
        if place < size:
            text[place] = ord("[")
    assert bounded_json._count(text, b"[") == text.count(b"[")


def test_a_clients_cell_with_too_many_values_is_refused() -> None:
    assert Code.of(b'{"code": "1"}').text == "1"
    with pytest.raises(InvalidRequest):
        Code.of(b'{"code": "1", "user_expressions": ' + TOO_MANY["keys"] + b"}")


def test_a_program_that_returns_too_many_values_returns_none() -> None:
    assert returned_by("[[], []]") is not None
    assert returned_by(LISTS.decode()) is None
