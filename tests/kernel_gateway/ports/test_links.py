"""Signed links: each part of one is covered by its signature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernel_gateway.ports.links import Link, read_token
from sessions.model.errors import InvalidRequest

LINK = Link("alice", "demo", "id1", 8000, 2_000_000_000, "ab12")


def test_a_links_path_holds_what_its_signature_covers() -> None:
    *start, tenant, session, port, token, rest = LINK.path("secret").split("/")
    assert (start, tenant, session, port, rest) == (["", "v1", "ports"], "alice", "demo", "8000", "")
    until, key_id, signature = read_token(token)
    assert (until, key_id) == (LINK.until, "ab12")
    assert LINK.is_signed("secret", signature)
    assert not LINK.is_signed("another", signature)


@pytest.mark.parametrize(
    "other",
    [{"tenant": "bob"}, {"session": "x"}, {"id": "id2"}, {"port": 8001}, {"until": 2_000_000_001}, {"key_id": None}],
    ids=str,
)
def test_no_part_of_a_link_can_be_changed(other: dict[str, Any]) -> None:
    _, _, signature = read_token(LINK.path("secret").split("/")[-2])
    assert not replace(LINK, **other).is_signed("secret", signature)


@pytest.mark.parametrize("token", ["", "1.2", "x..00", f"1..{'0' * 63}", f"-1..{'0' * 64}", f"{'1' * 13}..{'0' * 64}"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest):
        read_token(token)
