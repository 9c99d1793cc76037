"""The Host header of clients whose endpoint has two schemes; every other malformed or unknown host is refused."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests import gateways
from tests.gateways import KEYS, Gateway

KEY = f"Authorization: Bearer {KEYS['alice']}"
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: these tests use no kernel's isolation."""
    return started("process")


@pytest.fixture(scope="module")
def named() -> Iterator[Gateway]:
    """A gateway that also answers to another name."""
    with gateways.gateway("process", allowed_hosts="kernels.example") as serving:
        yield serving


def status(gateway: Gateway, *lines: str, path: str = "/v1/sessions", version: str = "1.1") -> int:
    """Return the status of a request with these header lines, or 0 if the connection ended without an answer."""
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname, where.port or 0), timeout=20) as connection:
        head = "\r\n".join((f"GET {path} HTTP/{version}", *lines, "", ""))
        connection.sendall(head.encode("latin-1"))
        return int((connection.recv(4096) or b"HTTP/1.1 000").split()[1])


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost", "LOCALHOST:80", "[::1]:{port}"])
def test_one_scheme_before_the_host_is_cut_off(gateway: Gateway, host: str) -> None:
    host = host.format(port=urlsplit(gateway.url).port)
    assert status(gateway, f"Host: {host}", KEY) == 200
    assert status(gateway, f"Host: http://{host}", KEY) == 200
    assert status(gateway, f"Host: http://{host}") == 401


REFUSED = [
    "https://{host}",
    "HTTP://{host}",
    "ftp://{host}",
    "http:/{host}",
    "http:{host}",
    "//{host}",
    "http://http://{host}",
    "http://https://{host}",
    "http://{host}/",
    "http://{host}/path",
    "http://user@{host}",
    "http://{host}#x",
    "http://{host}?x",
    "http:// {host}",
    "http://",
    "http://evil.example",
    "http://evil.example:80",
    "http://{host}.evil.example",
    "http://evil.example,{host}",
    "http://{host},evil.example",
    "http://{host},http://{host}",
    "evil.example",
    "\xe9",
    "http://\xe9",
]


@pytest.mark.parametrize("host", REFUSED, ids=ascii)
def test_any_other_host_header_is_refused(gateway: Gateway, host: str) -> None:
    host = host.format(host=urlsplit(gateway.url).netloc)
    for path in ("/v1/sessions", "/sandboxes", "/healthz", "/nowhere"):
        assert status(gateway, f"Host: {host}", KEY, path=path) in {400, 421}


def test_two_host_headers_are_refused(gateway: Gateway) -> None:
    host = urlsplit(gateway.url).netloc
    for first in (host, f"http://{host}", "evil.example"):
        for second in (host, f"http://{host}", "evil.example"):
            assert status(gateway, f"Host: {first}", f"Host: {second}", KEY) in {400, 421}


def test_a_missing_host_header_is_refused(gateway: Gateway) -> None:
    assert status(gateway, KEY) == 400


def test_the_allowed_host_names_hold_also_after_a_scheme(named: Gateway, gateway: Gateway) -> None:
    for host in ("kernels.example", "http://kernels.example", "http://kernels.example:8888"):
        assert status(named, f"Host: {host}", KEY) == 200
        assert status(gateway, f"Host: {host}", KEY) == 421
    for host in ("other.example", "http://other.example", "http://kernels.example.evil"):
        assert status(named, f"Host: {host}", KEY) == 421


def test_a_socket_is_opened_with_a_scheme_before_the_host(gateway: Gateway, session: str) -> None:
    path = f"/v1/sessions/{session}/stream"
    host = urlsplit(gateway.url).netloc
    assert status(gateway, f"Host: {host}", KEY, *UPGRADE, path=path) == 101
    assert status(gateway, f"Host: http://{host}", KEY, *UPGRADE, path=path) == 101
    assert status(gateway, "Host: http://evil.example", KEY, *UPGRADE, path=path) == 421


def test_a_page_of_another_origin_is_refused_also_with_a_scheme_before_the_host(gateway: Gateway, session: str) -> None:
    path = f"/v1/sessions/{session}/stream"
    host = urlsplit(gateway.url).netloc
    origin = "Origin: http://evil.example"
    assert status(gateway, f"Host: http://{host}", KEY, *UPGRADE, origin, path=path) == 403


def test_a_body_arrives_with_a_scheme_before_the_host(gateway: Gateway) -> None:
    where = urlsplit(gateway.url)
    body = b'{"templateName": "not allowed!"}'
    head = f"POST /2025-09-10/templates HTTP/1.1\r\nHost: http://{where.netloc}\r\n{KEY}\r\nContent-Length: {len(body)}"
    with socket.create_connection((where.hostname, where.port or 0), timeout=20) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body[:10])
        connection.sendall(body[10:])
        assert b"templateName" in connection.recv(65536)
