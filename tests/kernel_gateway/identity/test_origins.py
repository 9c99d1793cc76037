"""Web pages of other origins: only those whose origin the operator allows may use the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.websocket import websocket_connect

from kernel_gateway.identity.origins import Origins
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.mcp import LEGACY, Wire, legacy, modern, send

OURS, OTHER = "https://notebooks.example", "https://evil.example"
ALLOWED = "Access-Control-Allow-Origin"
PATHS = ["/v1/sessions", "/v1/sessions/s/files/a", "/api/kernels", "/api/terminals", "/healthz", "/nothing"]


@pytest.fixture(scope="module")
def open_gateway() -> Iterator[Gateway]:
    with gateways.gateway("process", allowed_origins=OURS) as serving:
        yield serving


def preflight(gateway: Gateway, path: str, origin: str) -> requests.Response:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    return gateway.call("OPTIONS", path, tenant=None, headers={"Origin": origin, **asked})


@pytest.mark.parametrize("path", PATHS)
def test_a_preflight_of_an_allowed_origin_is_answered(open_gateway: Gateway, path: str) -> None:
    answer = preflight(open_gateway, path, OURS)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers[ALLOWED] == OURS
    assert answer.headers["Vary"] == "Origin"
    assert "DELETE" in answer.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Credentials" not in answer.headers


@pytest.mark.parametrize("path", PATHS)
def test_a_preflight_of_another_origin_is_refused(open_gateway: Gateway, path: str) -> None:
    answer = preflight(open_gateway, path, OTHER)
    assert answer.status_code in {401, 404, 405}
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(("origin", "status"), [(OURS, 200), (OTHER, 403)])
def test_a_page_of_an_allowed_origin_may_speak_mcp(open_gateway: Gateway, origin: str, status: int) -> None:
    wire = legacy("initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={})
    answer = send(open_gateway, Wire(wire.headers | {"Origin": origin}, wire.body))
    assert answer.status_code == status
    told = preflight(open_gateway, "/mcp", origin).headers
    may_send = told.get("Access-Control-Allow-Headers", "").lower().split(", ")
    sent = [*modern("tools/call", name="files", arguments={"session": "s"}).headers, *wire.headers]
    assert {name.lower() for name in sent}.issubset(may_send) is (origin == OURS)
    may_read = answer.headers.get("Access-Control-Expose-Headers", "").split(", ")
    assert ("Mcp-Session-Id" in may_read) is (origin == OURS)


@pytest.mark.parametrize(("tenant", "status"), [("alice", 200), (None, 401)])
def test_a_page_of_an_allowed_origin_needs_a_key(open_gateway: Gateway, tenant: str | None, status: int) -> None:
    answer = open_gateway.call("GET", "/api/kernels", tenant=tenant, headers={"Origin": OURS})
    assert (answer.status_code, answer.headers[ALLOWED]) == (status, OURS)
    assert ALLOWED not in open_gateway.call("GET", "/api/kernels", headers={"Origin": OTHER}).headers
    assert ALLOWED not in open_gateway.call("GET", "/api/kernels").headers


def test_only_a_preflight_needs_no_key(open_gateway: Gateway) -> None:
    assert open_gateway.call("OPTIONS", "/api/kernels", tenant=None, headers={"Origin": OURS}).status_code == 401
    asked = {"Origin": OURS, "Access-Control-Request-Method": "POST"}
    assert open_gateway.call("POST", "/api/kernels", tenant=None, headers=asked).status_code == 401
    asked |= {"Host": "evil.example"}
    assert open_gateway.call("OPTIONS", "/api/kernels", tenant=None, headers=asked).status_code == 421


@pytest.mark.parametrize("path", ["/api/kernels/{kernel}/channels?token={key}", "/v1/sessions/page/stream"])
async def test_a_socket_opens_for_an_allowed_origin_only(open_gateway: Gateway, path: str) -> None:
    kernel = open_gateway.call("POST", "/api/kernels").json()["id"]
    url = open_gateway.url.replace("http", "ws", 1) + path.format(kernel=kernel, key=KEYS["alice"])
    headers = {"Authorization": f"Bearer {KEYS['alice']}"}
    connection = await websocket_connect(HTTPRequest(url, headers=headers | {"Origin": OURS}))
    connection.close()
    with pytest.raises(HTTPClientError) as refused:
        await websocket_connect(HTTPRequest(url, headers=headers | {"Origin": OTHER}))
    assert refused.value.code == 403
    open_gateway.call("DELETE", f"/api/kernels/{kernel}")


@pytest.mark.parametrize(
    "origin", [None, "null", "", OURS + ".evil.example", "http://notebooks.example", OURS + ":444"]
)
def test_an_origin_is_compared_whole(origin: str | None) -> None:
    assert not Origins([OURS]).allow(origin)
    assert Origins([OURS]).allow(OURS.upper())
    assert not Origins([]).allow(OURS)


def test_a_star_allows_all_origins() -> None:
    line = RequestStartLine("GET", "/", "HTTP/1.1")
    request = HTTPServerRequest(headers=HTTPHeaders({"Origin": OTHER, "Host": "localhost"}), start_line=line)
    assert Origins(["*"]).headers(request)[ALLOWED] == OTHER
    assert Origins([OURS]).headers(request) == {}
