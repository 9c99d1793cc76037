"""Which headers pass between a client and a hostile server."""

from __future__ import annotations

import pytest
from tornado.httputil import HTTPHeaders

from kernel_gateway.ports.headers import CREDENTIALS, SANDBOX, Pairs, Place, to_client, to_server, wants_websocket

PATH = Place("localhost:8000", own_host=False)
NAME = Place("8000-x.gw.test", own_host=True)


def sent(place: Place, *headers: tuple[str, str], websocket: bool = False) -> list[tuple[str, str]]:
    given = HTTPHeaders({"Host": "gw.test:8888"})
    for name, value in headers:
        given.add(name, value)
    return to_server(given, place, "https", websocket=websocket)


def answered(place: Place, *headers: tuple[str, str]) -> Pairs:
    return list(to_client(headers, place))


def test_a_server_learns_where_it_appears_and_nothing_of_the_clients_network() -> None:
    got = sent(PATH, ("X-Forwarded-For", "10.0.0.7"), ("Forwarded", "for=10.0.0.7"), ("Accept", "*/*"))
    assert got == [
        ("Host", "localhost:8000"),
        ("X-Forwarded-Host", "gw.test:8888"),
        ("X-Forwarded-Proto", "https"),
        ("Connection", "close"),
        ("Accept", "*/*"),
    ]


@pytest.mark.parametrize("name", sorted(CREDENTIALS))
def test_a_path_of_the_gateways_origin_gets_no_credentials_but_a_host_of_its_own_does(name: str) -> None:
    assert name not in {each.lower() for each, _ in sent(PATH, (name, "secret"))}
    assert (name.title(), "secret") in [(each.title(), value) for each, value in sent(NAME, (name, "secret"))]


def test_what_is_withheld_is_not_passed() -> None:
    place = Place("x", own_host=True, withheld=frozenset({"authorization"}))
    names = {name for name, _ in sent(place, ("Authorization", "Bearer key"), ("E2b-Traffic-Access-Token", "t"))}
    assert names == {"Host", "X-Forwarded-Host", "X-Forwarded-Proto", "Connection"}


def test_headers_of_one_connection_are_not_passed_on() -> None:
    got = sent(NAME, ("Connection", "keep-alive, X-Mine"), ("X-Mine", "1"), ("TE", "trailers"), ("Upgrade", "h2c"))
    assert {name for name, _ in got} == {"Host", "X-Forwarded-Host", "X-Forwarded-Proto", "Connection"}
    back = answered(NAME, ("Connection", "X-Mine"), ("X-Mine", "1"), ("Keep-Alive", "timeout=5"), ("X-Yours", "2"))
    assert back == [("X-Yours", "2")]


@pytest.mark.parametrize(
    ("method", "headers", "wanted"),
    [
        ("GET", {"Upgrade": "websocket", "Connection": "keep-alive, Upgrade"}, True),
        ("POST", {"Upgrade": "websocket", "Connection": "Upgrade"}, False),
        ("GET", {"Upgrade": "h2c", "Connection": "Upgrade"}, False),
        ("GET", {"Upgrade": "websocket"}, False),
    ],
)
def test_only_websockets_are_upgraded(method: str, headers: dict[str, str], *, wanted: bool) -> None:
    assert wants_websocket(method, HTTPHeaders(headers)) is wanted


HARMFUL = [
    ("Set-Cookie", "a=1"),
    ("Service-Worker-Allowed", "/"),
    ("Clear-Site-Data", '"*"'),
    ("Strict-Transport-Security", "max-age=99"),
    ("WWW-Authenticate", "Basic"),
    ("Alt-Svc", 'h3=":444"'),
    ("NEL", "{}"),
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Credentials", "true"),
    ("Referrer-Policy", "unsafe-url"),
]


@pytest.mark.parametrize("header", HARMFUL, ids=lambda header: header[0])
def test_nothing_that_changes_an_origin_comes_from_a_path_but_it_does_from_a_host(header: tuple[str, str]) -> None:
    assert answered(PATH, header) == [("Content-Security-Policy", SANDBOX), ("Referrer-Policy", "no-referrer")]
    assert answered(NAME, header) == [header]


def test_a_page_on_a_path_keeps_its_own_rules_beside_the_sandbox() -> None:
    assert "allow-same-origin" not in SANDBOX
    own = ("Content-Security-Policy", "default-src 'self'")
    assert answered(PATH, own)[0] == ("Content-Security-Policy", SANDBOX)
    assert own in answered(PATH, own)


def test_a_cookie_holds_for_its_own_host_only() -> None:
    cookie = ("Set-Cookie", "a=1; Domain=.gw.test; Path=/;domain = gw.test")
    assert answered(NAME, cookie) == [("Set-Cookie", "a=1; Path=/")]


def test_a_length_beside_chunks_is_dropped() -> None:
    lengths = ("Content-Length", "5"), ("Transfer-Encoding", "chunked")
    assert answered(NAME, *lengths) == []
    assert answered(NAME, lengths[0]) == [lengths[0]]
