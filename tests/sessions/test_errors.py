"""The error tree is complete: each error has a code, texts for the user, and a line in the drawing."""

from __future__ import annotations

import re

import orjson
import pytest

from sessions import errors
from sessions.errors import InvalidRequest, QuotaExceeded, SessionError


def _tree(kind: type[SessionError] = SessionError) -> list[type[SessionError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _tree(child))]


OURS = [kind for kind in _tree() if kind.__module__ == errors.__name__]
DRAWN = dict(re.findall(r"[├└]── (\w+) +(SB\d{3})", errors.__doc__ or ""))


def test_the_tree_has_errors() -> None:
    assert {InvalidRequest, QuotaExceeded} < set(OURS)


def test_every_code_is_used_once() -> None:
    codes = [kind.code for kind in OURS]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", OURS)
def test_an_error_has_a_code_of_its_own(kind: type[SessionError]) -> None:
    assert "code" in vars(kind)
    assert re.fullmatch(r"SB\d{3}", kind.code)


@pytest.mark.parametrize("kind", OURS)
def test_an_error_says_what_happened_and_what_to_do(kind: type[SessionError]) -> None:
    happened, to_do = kind._paragraphs()
    assert happened.endswith(".")
    assert to_do.endswith(".")
    assert kind().message == happened
    assert kind().resolution == to_do


def test_the_drawing_shows_every_error_with_its_code() -> None:
    assert {kind.__name__: kind.code for kind in OURS if kind is not SessionError} == DRAWN


def test_no_error_of_another_module_takes_a_code_of_this_one() -> None:
    others = [kind for kind in _tree() if kind not in OURS]
    assert not {kind.code for kind in others if "code" in vars(kind)} & {kind.code for kind in OURS}


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
