"""Credentials: who is whom, and nobody else; whatever comes, the answer is a tenant or `Unauthorized`."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from kernel_gateway.auth import Keys, make_local_key
from kernel_gateway.errors import Unauthorized

KEYS = Keys({"key-of-alice": "alice", "key-of-bob": "bob", "second-of-alice": "alice", "schlüssel": "carol"})


def request(*headers: tuple[str, str]) -> HTTPServerRequest:
    """A request with some headers, past the checks of the wire: not all that comes here would pass them."""
    carried = HTTPHeaders()
    for name, value in headers:
        carried._as_list.setdefault(name.title(), []).append(value)
    return HTTPServerRequest(start_line=RequestStartLine("GET", "/", "HTTP/1.0"), headers=carried)


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (("Authorization", "Bearer key-of-alice"), "alice"),
        (("Authorization", "Bearer second-of-alice"), "alice"),
        (("Authorization", "Bearer key-of-bob"), "bob"),
        (("Authorization", "bearer key-of-bob"), "bob"),
        (("authorization", "BEARER key-of-bob"), "bob"),
        (("Authorization", "token key-of-bob"), "bob"),
        (("X-API-Key", "key-of-bob"), "bob"),
        (("x-api-key", "key-of-bob"), "bob"),
    ],
    ids=str,
)
def test_a_known_key_is_its_tenants(header: tuple[str, str], tenant: str) -> None:
    assert KEYS.tenant(request(header)) == tenant


WRONG = [
    (),
    (("Authorization", "Bearer nobodys-key"),),
    (("Authorization", "bearer nobodys-key"),),
    (("Authorization", "Bearer key-of-alic"),),
    (("Authorization", "Bearer key-of-alicee"),),
    (("Authorization", "Bearer KEY-OF-ALICE"),),
    (("Authorization", "Bearer key-of-alice key-of-alice"),),
    (("Authorization", "Basic key-of-alice"),),
    (("Authorization", "key-of-alice"),),
    (("Authorization", "Bearer\tkey-of-alice"),),
    (("Authorization", "Bearer"),),
    (("Authorization", "Bearer "),),
    (("Authorization", "Bearer    "),),
    (("Authorization", ""),),
    (("X-API-Key", ""),),
    (("X-API-Key", "Bearer key-of-alice"),),
    (("Authorization", "Bearer é"),),
    (("Authorization", "Bearer \xff\xfe"),),
    (("Authorization", "Bearer \udc80"),),
    (("Authorization", "Bearer \ud800"),),
    (("Authorization", "Bearer 🦊"),),
    (("Authorization", "Bearer \0"),),
    (("Authorization", "Bearer " + "x" * 1_000_000),),
    (("Authorization", "Bearer key-of-alice" + "\0" * 1_000_000),),
    (("Authorization", "Bearer key-of-alice"), ("Authorization", "Bearer key-of-alice")),
    (("Authorization", "Bearer nobodys-key"), ("Authorization", "Bearer key-of-alice")),
    (("X-API-Key", "key-of-alice"), ("X-API-Key", "key-of-bob")),
    (("Cookie", "key=key-of-alice"),),
    (("Proxy-Authorization", "Bearer key-of-alice"),),
]


@pytest.mark.parametrize("headers", WRONG, ids=lambda headers: ascii(headers)[:70])
def test_anything_else_is_nobodys(headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Unauthorized) as refusal:
        KEYS.tenant(request(*headers))
    assert "key-of-alice" not in str(refusal.value.as_dict())


@given(st.text())
def test_no_text_is_more_than_a_wrong_key(text: str) -> None:
    for header in (("Authorization", text), ("Authorization", f"Bearer {text}"), ("X-API-Key", text)):
        with pytest.raises(Unauthorized):
            KEYS.tenant(request(header))


def test_a_wrong_bearer_is_not_helped_by_a_right_api_key() -> None:
    with pytest.raises(Unauthorized):
        KEYS.tenant(request(("Authorization", "Bearer nobodys-key"), ("X-API-Key", "key-of-alice")))


def test_without_keys_nobody_is_anybody() -> None:
    for headers in ((), (("Authorization", "Bearer x"),), (("Authorization", "Bearer "),)):
        with pytest.raises(Unauthorized):
            Keys({}).tenant(request(*headers))


def test_keys_are_kept_as_digests() -> None:
    assert b"key-of-alice" not in b"".join(digest for digest, _ in KEYS._tenants)
    assert "key-of-alice" not in str(vars(KEYS))


def test_a_local_key_is_new_each_time_and_for_its_user_only(tmp_path: Path) -> None:
    first, file = make_local_key(tmp_path)
    file.chmod(0o644)  # left by somebody careless
    second, file = make_local_key(tmp_path)
    assert first != second
    assert len(second) >= 43
    assert file.read_text() == f"{second}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
