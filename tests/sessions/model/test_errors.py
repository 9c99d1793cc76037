"""Each error has a code of its own, and texts for the user."""

from __future__ import annotations

import inspect
import re

import orjson
import pytest

from sessions.model import errors
from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionError, of_code

OURS = [SessionError, *(kind for kind in SessionError.__subclasses__() if kind.__module__ == errors.__name__)]


def test_the_module_has_errors() -> None:
    assert {InvalidRequest, QuotaExceeded} < set(OURS)


def test_a_code_is_used_once() -> None:
    with pytest.raises(TypeError, match="SB008 is the code of QuotaExceeded and of Another"):
        type("Another", (SessionError,), {}, code=QuotaExceeded.code)


@pytest.mark.parametrize("kind", OURS)
def test_the_error_of_a_code_is_found(kind: type[SessionError]) -> None:
    assert re.fullmatch(r"SB\d{3}", kind.code)
    assert type(of_code(kind.code)) is kind


def test_an_unknown_code_has_no_error() -> None:
    assert of_code("SB999") is None
    assert of_code(["SB008"]) is None


@pytest.mark.parametrize("kind", OURS)
def test_an_error_says_what_happened_and_what_to_do(kind: type[SessionError]) -> None:
    told = [" ".join(paragraph.split()) for paragraph in (inspect.getdoc(kind) or "").split("\n\n")]
    assert [kind().message, kind().resolution] == told
    assert all(each.endswith(".") for each in told)


def test_a_given_message_replaces_only_the_first_paragraph() -> None:
    refused = QuotaExceeded("at most 3", limit="sessions", max=3)
    assert str(refused) == refused.message == "at most 3"
    assert refused.resolution == QuotaExceeded().resolution


def test_an_error_is_json() -> None:
    assert orjson.loads(orjson.dumps(QuotaExceeded("at most 3", max=3).as_dict())) == {
        "code": "SB008",
        "name": "QuotaExceeded",
        "message": "at most 3",
        "resolution": QuotaExceeded().resolution,
        "details": {"max": 3},
    }
