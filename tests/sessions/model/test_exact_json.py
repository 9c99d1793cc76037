"""JSON of clients' values: numbers come out as they went in, or are refused."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import exact_json
from sessions.model.bounded_json import CONTAINERS_MAX, TooManyValues

LARGE = ["18446744073709551616", "-9223372036854775809", str(2**70), "1" + "0" * 400, "9" * 4300]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("form", ["%s", "[1.5,%s]", '{"a":{"b":[%s]}}', '[[],[{"c":%s}]]', '{"\u00fc":%s}'])
def test_a_whole_number_keeps_all_its_digits(number: str, form: str) -> None:
    text = form % number
    assert exact_json.dumps(exact_json.loads(text)) == text.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_value_can_be_written_and_read(value: object) -> None:
    assert exact_json.loads(exact_json.dumps(value)) == value
    assert exact_json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["", "[", "NaN", "[1e999]", '"\\ud800"', "9" * 4301, f'["\\ud800",{2**70}]', f"[NaN,{2**70}]", "[" * 2000]
)
def test_what_cannot_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        exact_json.loads(text)


def test_large_floats_stay_floats() -> None:
    assert exact_json.loads("[1e300, -1e19]") == [1e300, -1e19]
    assert [type(value) for value in exact_json.loads(f"[1e300, {2**70}]")] == [float, int]


def test_very_many_values_are_refused() -> None:
    with pytest.raises(TooManyValues):
        exact_json.loads("[" + "[]," * CONTAINERS_MAX + "[]]")


def test_indentation_is_as_of_orjson() -> None:
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    small, large = ({"a": [1, {"b": number}]} for number in (1, 2**70))
    assert exact_json.dumps(large, option) == orjson.dumps(small, option=option).replace(b'"b": 1', b'"b": %d' % 2**70)
