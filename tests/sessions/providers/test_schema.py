"""Checks of configurations against their schemas, and masked secrets."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sessions.model.errors import InvalidRequest
from sessions.providers.base import Field
from sessions.providers.schema import URL_MAX, checked, is_url, masked, merged

SCHEMA = {
    "url": Field("string", "URL", required=True, destination=True, default="http://here"),
    "key": Field("string", "Key", required=True, secret=True),
    "token": Field("string", "Token", secret=True, default=""),
    "region": Field("string", "Region", default="us", options=("us", "eu")),
    "timeout": Field("integer", "Timeout", default=30, min=5, max=300),
    "careful": Field("boolean", "Careful", default=True),
    "note": Field("string", "Note"),
}
SECRET = "sk-0123456789abcdef"  # noqa: S105 - of no service
KEPT = checked(SCHEMA, {"key": SECRET})


def test_missing_fields_get_their_defaults() -> None:
    complete = {"url": "http://here", "key": SECRET, "token": "", "region": "us", "timeout": 30, "careful": True}
    assert complete == KEPT
    assert checked(SCHEMA, {"key": SECRET, "timeout": None}) == complete
    other = {
        "url": "http://there",
        "key": "k",
        "token": "t",
        "region": "eu",
        "timeout": 5,
        "careful": False,
        "note": "n",
    }
    assert checked(SCHEMA, other) == other


@pytest.mark.parametrize(
    ("config", "field", "problem"),
    [
        ({}, "key", "required"),
        ({"key": ""}, "key", "required"),
        ({"key": None}, "key", "required"),
        ({"key": 5}, "key", "text"),
        ({"key": "••••cdef"}, "key", "enter it anew"),
        ({"key": SECRET, "timeout": 4}, "timeout", "at least 5"),
        ({"key": SECRET, "timeout": 301}, "timeout", "at most 300"),
        ({"key": SECRET, "timeout": "30"}, "timeout", "whole number"),
        ({"key": SECRET, "timeout": True}, "timeout", "whole number"),
        ({"key": SECRET, "timeout": 30.0}, "timeout", "whole number"),
        ({"key": SECRET, "careful": 1}, "careful", "true or false"),
        ({"key": SECRET, "region": "mars"}, "region", "one of us, eu"),
        ({"key": SECRET, "colour": "red"}, "colour", "no such field"),
        ({"key": SECRET, "url": []}, "url", "text"),
    ],
)
def test_an_invalid_field_is_named_with_its_problem(config: dict[str, object], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field}: .*{problem}") as refused:
        checked(SCHEMA, config)
    (told,) = refused.value.details["fields"]
    assert told["field"] == field
    assert problem in told["problem"]


def test_all_invalid_fields_are_named_without_their_values() -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked(SCHEMA, {"key": [SECRET], "timeout": 1, "region": SECRET})
    assert [told["field"] for told in refused.value.details["fields"]] == ["key", "region", "timeout"]
    assert SECRET not in repr(refused.value.as_dict())


@pytest.mark.parametrize(
    ("secret", "shown"), [(SECRET, "••••cdef"), ("0123456789ab", "••••89ab"), ("0123456789a", "••••"), ("", "")]
)
def test_only_the_end_of_a_long_secret_is_shown(secret: str, shown: str) -> None:
    assert masked(SCHEMA, {"key": secret, "timeout": 7}) == {"key": shown, "timeout": 7}


def test_fields_unknown_to_the_schema_are_not_shown() -> None:
    assert masked(SCHEMA, {"old_password": SECRET, "note": "n"}) == {"note": "n"}


@pytest.mark.parametrize("kept", [SECRET, "short"])
def test_a_secret_that_comes_back_as_it_was_shown_is_unchanged(kept: str) -> None:
    before = KEPT | {"key": kept}
    after = merged(SCHEMA, before, masked(SCHEMA, before) | {"timeout": 60})
    assert checked(SCHEMA, after) == before | {"timeout": 60}


def test_a_new_secret_replaces_the_old_one() -> None:
    assert merged(SCHEMA, KEPT, {"key": "another", "token": "new"}) == {"key": "another", "token": "new"}
    assert merged(SCHEMA, KEPT | {"token": SECRET}, {"key": "another", "token": ""})["token"] == ""


def test_the_masked_form_of_another_secret_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="enter it anew"):
        checked(SCHEMA, merged(SCHEMA, KEPT, {"key": "••••wxyz"}))


@pytest.mark.parametrize("sent", [{"url": "http://attacker"}, {"url": ""}])
def test_a_masked_secret_is_refused_for_a_new_destination(sent: dict[str, Any]) -> None:
    shown = masked(SCHEMA, KEPT)
    assert merged(SCHEMA, KEPT, shown)["key"] == SECRET
    assert merged(SCHEMA, KEPT, {"key": shown["key"]})["key"] == SECRET
    with pytest.raises(InvalidRequest, match="enter it anew"):
        checked(SCHEMA, merged(SCHEMA, KEPT, shown | sent))
    assert merged(SCHEMA, KEPT, {"key": SECRET} | sent)["key"] == SECRET


@pytest.mark.parametrize(
    "url", ["http://host", "https://a_b.example:9385/path/", "http://[::1]:80", "http://127.0.0.1:1", "http://host:"]
)
def test_urls_of_services_are_accepted_and_httpx_takes_them(url: str) -> None:
    assert is_url(url)
    assert httpx.URL(f"{url.rstrip('/')}/run").host


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:9385", "file:///etc/passwd", "http://", "http://host:0", "http://host:99999", "http://a?b=c"),
        *(
            "http://user:password@host",
            "http://host\r\n",
            "http://ho\tst",
            "http://a b",
            "http://h\u00f6st",
            "http://a\0",
        ),
        *("http://a..b", f"http://{'a' * 64}", "http://[::1", "http://[v1.x]a", "http://]x[::1", "http://a" * URL_MAX),
    ],
)
def test_what_no_http_client_takes_is_no_url(url: str) -> None:
    assert not is_url(url)
