"""Which headers pass between a client and a server of user code. Pure functions.

The server is hostile, and so may be its pages. On a host name of its own, they can harm only themselves. On the
gateway's origin, they must not use what a browser keeps for the gateway: cookies, passwords, workers, permissions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tornado.httputil import HTTPHeaders

Pairs = list[tuple[str, str]]

#: headers that concern one connection only, besides those that `Connection` names. Source: RFC 9110, 7.6.1
HOP = frozenset({
    "connection", "expect", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
#: headers that the gateway writes anew for the server, or that tell it of the client's network
REWRITTEN = frozenset({
    "content-length", "host", "forwarded", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
})  # fmt: skip
#: credentials and names that are for the gateway
FOR_GATEWAY = frozenset({
    "e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token", "x-access-token", "x-request-id",
    "agentrun-authorization", "agentrun-access-token", "x-acs-security-token",
})  # fmt: skip
#: the headers in which a client sends a key
KEY_HEADERS = frozenset({"authorization", "x-api-key"})
#: what a client may send to the gateway's own origin as a credential
CREDENTIALS = KEY_HEADERS | {"cookie"}
#: headers of an answer that would change what a browser does for the whole origin: cookies, stored data, workers,
#: passwords, other ports and reports; or that decide which pages may read it, which the gateway does
OF_ORIGIN = frozenset({
    "alt-svc", "clear-site-data", "expect-ct", "nel", "origin-agent-cluster", "permissions-policy", "public-key-pins",
    "public-key-pins-report-only", "report-to", "reporting-endpoints", "service-worker-allowed", "set-cookie",
    "set-cookie2", "strict-transport-security", "www-authenticate", "referrer-policy",
    "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods",
    "access-control-allow-origin", "access-control-allow-private-network", "access-control-expose-headers",
    "access-control-max-age",
})  # fmt: skip
#: what a page on the gateway's origin may do. Without `allow-same-origin` it has an origin of its own, so it reaches
#: neither the gateway's cookies and storage nor its other pages
SANDBOX = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-pointer-lock allow-scripts"


@dataclass(frozen=True, slots=True)
class Place:
    """How a server appears to its client."""

    #: value of the header Host that the server gets
    host: str
    #: whether the server has a host name of its own; otherwise it is a path of the gateway's origin
    own_host: bool
    #: names of further headers that the server does not get, in lower case
    withheld: frozenset[str] = frozenset()


def wants_websocket(method: str | None, headers: HTTPHeaders) -> bool:
    """Return whether a request asks for a WebSocket. No other upgrade is passed on."""
    asked = headers.get("Upgrade", "").strip().lower() == "websocket"
    return method == "GET" and asked and "upgrade" in _named(headers.get_list("Connection"))


def to_server(headers: HTTPHeaders, place: Place, protocol: str, *, websocket: bool) -> Pairs:
    """Return the headers of a request as the server gets them, without those of its body.

    Args:
        headers: headers of the client's request.
        place: how the server appears to the client.
        protocol: `http` or `https`.
        websocket: whether the request asks for a WebSocket.
    """
    left_out = HOP | REWRITTEN | FOR_GATEWAY | place.withheld | _named(headers.get_list("Connection"))
    if not place.own_host:
        left_out |= CREDENTIALS
    passed = [(name, value) for name, value in headers.get_all() if name.lower() not in left_out]
    asked = headers.get("Host", "")
    own: Pairs = [("Host", place.host), ("X-Forwarded-Host", asked), ("X-Forwarded-Proto", protocol)]
    own += [("Connection", "Upgrade"), ("Upgrade", "websocket")] if websocket else [("Connection", "close")]
    return own + passed


def to_client(headers: Iterable[tuple[str, str]], place: Place) -> Iterator[tuple[str, str]]:
    """Yield the headers of a server's answer as the client gets them."""
    given = list(headers)
    left_out = HOP | _named(value for name, value in given if name.lower() == "connection")
    if any(name.lower() == "transfer-encoding" for name, _ in given):  # then the length does not count, and may lie
        left_out |= {"content-length"}
    if not place.own_host:
        left_out |= OF_ORIGIN
        yield "Content-Security-Policy", SANDBOX
        yield "Referrer-Policy", "no-referrer"  # a link's signature is in the page's URL
    for name, value in given:
        if name.lower() == "set-cookie":
            if place.own_host:
                yield name, _host_only(value)
        elif name.lower() not in left_out:
            yield name, value


def _named(values: Iterable[str]) -> frozenset[str]:
    """Return the names in the values of `Connection`, in lower case."""
    return frozenset(name.strip().lower() for value in values for name in value.split(","))


def _host_only(cookie: str) -> str:
    """Return a cookie without its domain: it would be sent to the other sandboxes, and to the gateway."""
    parts = cookie.split(";")
    return ";".join(part for part in parts if part.partition("=")[0].strip().lower() != "domain")
