"""The form of an answer that a client of execute prefers."""

from __future__ import annotations

import pytest

from kernel_gateway.dialects.native.stream_formats import wanted_stream
from kernel_gateway.http.accept import accepts
from tests.kernel_gateway.calls import NDJSON, SERVER_SENT


@pytest.mark.parametrize(
    ("accept", "stream"),
    [
        ("", None),
        ("*/*", None),
        ("application/json", None),
        (NDJSON, NDJSON),
        (SERVER_SENT, SERVER_SENT),
        (f"{NDJSON}, */*", NDJSON),
        (f"{SERVER_SENT};charset=utf-8 ; q=0.5", SERVER_SENT),
        ("Application/X-NDJSON", NDJSON),
        (f"{NDJSON};q=0", None),
        (f"{NDJSON}; q=0.000", None),
        (f"{NDJSON};q=0, {SERVER_SENT}", SERVER_SENT),
        (f"{NDJSON};q=0.1, {SERVER_SENT};q=0.2", SERVER_SENT),
        (f"application/json, {NDJSON}", NDJSON),
        (f"application/json, {NDJSON};q=0.9", None),
        (f"{NDJSON}x", None),
        (f"x{NDJSON}", None),
        (",;q=1,;;", None),
    ],
)
def test_the_stream_with_the_highest_weight_is_sent_unless_a_whole_answer_has_a_higher_one(
    accept: str, stream: str | None
) -> None:
    assert wanted_stream(accept) == stream


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        ("", False),
        (f"application/json, {SERVER_SENT}", True),
        (f"application/json, {SERVER_SENT};q=0", False),
        ("text/*;q=0.5", True),
        ("*/*", True),
        (f"*/*, {SERVER_SENT};q=0", False),
        ("text/html", False),
    ],
)
def test_a_type_is_accepted_as_the_most_exact_range_says(accept: str, accepted: bool) -> None:  # noqa: FBT001
    assert accepts(accept, SERVER_SENT) is accepted
