"""Credentials: every request, whatever it carries, gives its caller or `Unauthorized`."""

from __future__ import annotations

import base64
import gc
import stat
from pathlib import Path

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from kernel_gateway.errors import Unauthorized
from kernel_gateway.identity.auth import Caller, Keys, make_local_key
from kernel_gateway.identity.keystore import KeyStore
from sessions.providers.forwarding import FORWARDED
from tests.fakes import Clock

KEYS = Keys({"key-of-alice": "alice", "key-of-bob": "bob", "second-of-alice": "alice", "schlüssel": "carol"})


def request(*headers: tuple[str, str], peer: str = "127.0.0.1", version: str = "HTTP/1.1") -> HTTPServerRequest:
    """Return a request with some headers, without the wire's checks: some of these requests would not pass them."""
    carried = HTTPHeaders()
    for name, value in headers:
        carried._as_list.setdefault(name.title(), []).append(value)
    carried._as_list.setdefault("Host", ["localhost"])
    made = HTTPServerRequest(start_line=RequestStartLine("GET", "/", version), headers=carried)
    made.remote_ip = peer
    return made


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
def test_a_known_key_belongs_to_its_tenant(header: tuple[str, str], tenant: str) -> None:
    assert KEYS.caller(request(header)).tenant == tenant


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
def test_any_other_credential_is_refused(headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Unauthorized) as refusal:
        KEYS.caller(request(*headers))
    assert "key-of-alice" not in str(refusal.value.as_dict())


@given(st.text())
def test_any_text_is_a_wrong_key(text: str) -> None:
    for header in (("Authorization", text), ("Authorization", f"Bearer {text}"), ("X-API-Key", text)):
        with pytest.raises(Unauthorized):
            KEYS.caller(request(header))


def test_a_right_api_key_does_not_help_a_wrong_bearer_key() -> None:
    with pytest.raises(Unauthorized):
        KEYS.caller(request(("Authorization", "Bearer nobodys-key"), ("X-API-Key", "key-of-alice")))


def test_without_keys_every_request_is_refused() -> None:
    for headers in ((), (("Authorization", "Bearer x"),), (("Authorization", "Bearer "),)):
        with pytest.raises(Unauthorized):
            Keys({}).caller(request(*headers))


# -- a key as a password, and no key at all -------------------------------------------------------------------


def basic(text: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("user", ["alice", "", "bob", "é"])
def test_a_password_is_a_key_only_with_as_password(user: str) -> None:
    asked = request(basic(f"{user}:key-of-alice"))
    assert KEYS.caller(asked, as_password=True).tenant == "alice"
    with pytest.raises(Unauthorized):
        KEYS.caller(asked)


@pytest.mark.parametrize(
    "header",
    [
        basic("alice:nobodys-key"),
        basic("key-of-alice"),
        basic("key-of-alice:"),
        basic("alice:x:key-of-alice"),
        ("Authorization", "Basic"),
        ("Authorization", "Basic é"),
        ("Authorization", "Basic /w=="),
        ("Authorization", "Basic alice:key-of-alice"),
        ("Authorization", "Digest YWxpY2U6a2V5LW9mLWFsaWNl"),
    ],
)
def test_a_wrong_or_malformed_password_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(Unauthorized):
        KEYS.caller(request(header), as_password=True)


ALONE = Keys({"key-of-local": "local"}, trusts_local_clients=True)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1"])
def test_a_request_from_this_machine_may_need_no_key(peer: str) -> None:
    assert ALONE.local_caller(request(peer=peer)) == Caller("local")
    assert KEYS.local_caller(request(peer=peer)) is None


@pytest.mark.parametrize("peer", ["192.0.2.1", "10.0.0.1", "172.17.0.1", "::", "", "localhost", "fe80::1"])
def test_a_request_from_another_machine_needs_a_key(peer: str) -> None:
    assert ALONE.local_caller(request(peer=peer)) is None


@pytest.mark.parametrize(
    "header",
    [
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-For", ""),
        ("Forwarded", "for=127.0.0.1"),
        ("Via", "1.1 proxy"),
        ("X-Real-IP", "127.0.0.1"),
        ("X-Forwarded-Host", "localhost"),
        ("Origin", "null"),
        ("Origin", "http://localhost:8888"),
        ("Referer", "http://localhost:8888/"),
        ("Sec-Fetch-Site", "none"),
        ("Sec-CH-UA", '"Chromium"'),
        ("Accept-Language", "en"),
        ("Cookie", ""),
        ("CF-Connecting-IP", "192.0.2.1"),
        ("True-Client-IP", "192.0.2.1"),
        ("X-Client-IP", "192.0.2.1"),
        ("X-Envoy-External-Address", "192.0.2.1"),
        ("X-A-Proxy-That-Nobody-Knows", "1"),
        ("Authorization", "Bearer nobodys-key"),
        ("X-API-Key", ""),
    ],
)
def test_neither_a_proxy_nor_a_web_page_nor_a_wrong_key_is_a_neighbour(header: tuple[str, str]) -> None:
    assert ALONE.local_caller(request(header)) is None


def test_a_proxy_that_adds_no_header_is_no_neighbour() -> None:
    """Source: nginx, `proxy_http_version`, whose default is 1.0."""
    assert ALONE.local_caller(request(version="HTTP/1.1"))
    assert ALONE.local_caller(request(version="HTTP/1.0")) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"User-Agent": "curl/8.5.0", "Accept": "*/*", "Content-Type": "application/json", "Expect": "100-continue"},
        dict(requests.Session().prepare_request(requests.Request("POST", "http://localhost/run", json={})).headers),
        dict(httpx.Client().build_request("POST", "http://localhost/run", json={}).headers),
        {"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip", "Transfer-Encoding": "chunked"},
        {FORWARDED: "1"},
    ],
    ids=["curl", "requests", "httpx", "Go", "another gateway"],
)
def test_programs_are_neighbours(headers: dict[str, str]) -> None:
    assert ALONE.local_caller(request(*headers.items()))


def test_every_request_needs_a_key_once_a_key_exists(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    keys = Keys({}, None, store, trusts_local_clients=True)
    assert keys.local_caller(request())
    key, _ = store.add("team")
    assert keys.local_caller(request()) is None
    store.revoke(key.id)
    assert keys.local_caller(request())
    store.close()


def test_keys_are_kept_as_digests() -> None:
    assert "alice" in str(vars(KEYS)), "the control: its tenant is seen"
    assert "key-of-alice" not in str(vars(KEYS))


def test_a_local_key_stays_the_same_and_is_for_its_user_only(tmp_path: Path) -> None:
    first, file = make_local_key(tmp_path)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (f"{first}\n", 0o600)
    assert make_local_key(tmp_path) == (first, file)


@pytest.mark.parametrize("damage", ["others may read it", "it is empty", "it is a link"])
def test_a_local_key_that_others_may_know_or_that_is_none_is_replaced(tmp_path: Path, damage: str) -> None:
    first, file = make_local_key(tmp_path)
    match damage:
        case "others may read it":
            file.chmod(0o644)
        case "it is empty":
            file.write_text("")
        case _:
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
    second, file = make_local_key(tmp_path)
    assert second != first
    assert (file.read_text(), stat.S_IMODE(file.lstat().st_mode)) == (f"{second}\n", 0o600)
    assert not file.is_symlink()


def test_tokens_of_revoked_keys_are_forgotten(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    keys = Keys({}, store=store)
    for _ in range(20):
        key, secret = store.add("revoked")
        token = keys.token(keys.caller(request(("X-API-Key", secret))))
        assert keys.caller(request(("X-API-Key", token))).tenant == "revoked"
        store.revoke(key.id)
    gc.collect()
    kept = [thing for thing in gc.get_objects() if isinstance(thing, Caller) and thing.tenant == "revoked"]
    assert len(kept) == 1
    store.close()


def test_an_expired_key_and_its_tokens_are_refused_as_expired(tmp_path: Path) -> None:
    clock = Clock()
    store = KeyStore(tmp_path, clock)
    keys = Keys({}, store=store)
    _, secret = store.add("alice", expires_at=1080.0)
    caller = keys.caller(request(("X-API-Key", secret)))
    token = keys.token(caller)
    assert keys.is_still_valid(caller)
    clock.now = 1080.0
    for key in (secret, token):
        with pytest.raises(Unauthorized, match=r"^the key has expired: it was valid until 1970-01-01T00:18:00Z$"):
            keys.caller(request(("X-API-Key", key)))
    assert not keys.is_still_valid(caller)
    store.close()
