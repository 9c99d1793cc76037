"""Requests that the API refuses before they reach a kernel: keys, hosts, names, bodies, methods, paths."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http import HTTPMethod
from typing import Any, cast

import pytest
import requests

from kernel_gateway.dialects import DIALECTS
from kernel_gateway.gateway import Gateway as Parts
from kernel_gateway.http.admin_handler import AdminHandler
from kernel_gateway.http.handlers import MAX_BODY, BaseHandler
from kernel_gateway.ports.handler import PortHandler
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import SHARED, Answer, failure, raw, until

BEARER = ("Authorization", f"Bearer {KEYS['alice']}")
UPGRADE = (
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)
EXECUTE = f"/v1/sessions/{SHARED}/execute"


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """Any gateway: the tests do not depend on the kernel."""
    return started("process")


# -- keys ------------------------------------------------------------------------------------------------------


def routes() -> list[tuple[str, type[BaseHandler]]]:
    """Return a path and the handler of every route of every dialect."""
    return [(path_for(pattern), handler) for pattern, handler in patterns()]


def patterns() -> list[tuple[str, type[BaseHandler]]]:
    """Return the pattern and the handler of every route of every dialect."""
    parts = cast("Parts", None)  # the routes only store it
    # Those that serve only some requests of their paths have tests of their own, see `test_e2b.py`.
    table = [route for dialect in DIALECTS if dialect.serves is None for route in dialect.routes(parts)]
    return [(pattern, cast("type[BaseHandler]", handler)) for pattern, handler, _ in table]


def path_for(pattern: str) -> str:
    """Return a path that matches a route's pattern."""
    path = re.sub(r"\(\?:[^()]*\)\?", "", pattern)  # what may be absent
    path = re.sub(r"(?<!\()\[[^\]]*\]\+", "nobody", path)  # a name that no handler gets
    path = path.replace("(/.*)?", "").replace("(/.+)", "/nobody")
    path = re.sub(r"\((?:\?:)?(\w+)(\|[^)]*)?\)", r"\1", path)  # the first alternative
    path = re.sub(r"\([^)]*\)|\.\*", "nobody", path.replace("([0-9]{1,9})", "1")).replace("/?", "").replace("\\", "")
    assert re.fullmatch(pattern, path)
    return path


PRIVATE = [path for path, handler in routes() if not handler.public]
#: servers of user code, which get any method and any path
OF_SERVERS = [path for path, handler in routes() if issubclass(handler, PortHandler)]
OF_ADMINS = [path for path, handler in routes() if issubclass(handler, AdminHandler)]
OF_USERS = [path for path in PRIVATE if path not in OF_ADMINS]
#: those with which a slash at the end belongs to the path
SLASHED = {path_for(pattern) for pattern, _ in patterns() if pattern.endswith("/?")}
#: those whose WebSocket has the key in its first message; see `test_open_terminal.py`
KEY_IN_MESSAGE = ["/open-terminal/api/terminals/nobody"]
#: a stream that has no end; see `test_mcp.py`
STREAM = "/sse"
METHODS = [method for method in HTTPMethod if method not in {"CONNECT", "TRACE"}]
WRONG = [
    (("Authorization", "Bearer not-a-key-at-all"),),
    (("X-API-Key", "not-a-key-at-all"),),
    (("Authorization", "Basic bm9ib2R5Om5vdC1hLWtleS1hdC1hbGw="),),
    (("Cookie", f"key={KEYS['alice']}"),),
]


def refusal_of(answer: Answer) -> tuple[int, str]:
    """Return status and error code of a refusal, in the form of its dialect: each has our code somewhere."""
    error = json.loads(answer.content).get("error")
    if isinstance(error, dict) and "resolution" in error:
        return failure(answer)
    assert b"Traceback" not in answer.content
    found = re.search("SB[0-9]{3}", answer.content.decode())
    return answer.status_code, found[0] if found else ""


def test_only_routes_without_data_of_tenants_are_public() -> None:
    public = {path for path, handler in routes() if handler.public}
    described = {"/v1/openapi.json", "/api/swagger.json", "/open-terminal/openapi.json", "/open-terminal/api/config"}
    health = {"/", "/healthz", "/readyz", "/health", "/librechat/v1/health", "/open-terminal/health", "/metrics"}
    redirect = {"/v1/ports/nobody/nobody/nobody/nobody"}
    assert public == health | {"/admin", "/admin/nobody"} | described | redirect
    assert len(PRIVATE) >= 8


def test_every_path_of_the_administration_is_only_for_admins() -> None:
    """All tests of roles below ask the handler's class, so a handler of another class would be open to every user."""
    assert [path for path in PRIVATE if "admin" in path.split("/")] == OF_ADMINS


@pytest.mark.parametrize("path", PRIVATE)
def test_every_route_needs_a_key_for_every_method(gateway: Gateway, path: str) -> None:
    upgrades = [] if path in KEY_IN_MESSAGE else [(HTTPMethod.GET, UPGRADE)]
    for method, upgrade in [*((method, ()) for method in METHODS), *upgrades]:
        answer = raw(gateway, method, path, headers=upgrade, body=b'{"code": "x = 1"}')
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert method == "HEAD" or refusal_of(answer) == (401, "SB020")


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("path", [EXECUTE, "/api/kernels", "/sandboxes"])
def test_an_invalid_key_is_refused(gateway: Gateway, path: str, wrong: tuple[tuple[str, str], ...]) -> None:
    assert refusal_of(raw(gateway, "POST", path, headers=wrong, body=b'{"code": "x = 1"}')) == (401, "SB020")
    assert gateway.call("GET", "/v1/sessions/nobody").status_code == 404  # a valid key gets another answer


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
def test_a_proxy_method_is_refused(gateway: Gateway, method: str) -> None:
    assert raw(gateway, method, "/v1/sessions", headers=()).status_code in {400, 401, 405}


#: a key as a password, in a URL
BASIC = (("Authorization", "Basic YWxpY2U6YWxpY2Uta2V5LTAwMDE="),)
#: routes whose clients send it; without configured keys, local clients need no key (see test_ragflow.py)
OF_RAGFLOW = ["/run", "/execute"]
#: MCP's old transport, whose client vLLM sends a key only so
OF_VLLM = ["/sse", "/messages"]


def test_a_key_as_a_password_is_accepted_only_where_clients_send_no_other(gateway: Gateway) -> None:
    opened = [path for path in PRIVATE if raw(gateway, "PATCH", path, headers=BASIC).status_code != 401]
    assert opened == OF_RAGFLOW + OF_VLLM


@pytest.mark.parametrize(
    "path", [path for path in OF_USERS if not path.startswith("/v1/ports/") and path != STREAM]
)  # needs a link
def test_a_users_key_is_accepted_by_every_user_route(gateway: Gateway, path: str) -> None:
    assert raw(gateway, "GET", path).status_code not in {401, 403}


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", OF_ADMINS)
def test_a_users_key_is_refused_by_every_admin_route(gateway: Gateway, path: str, method: str) -> None:
    for headers in ((BEARER,), (BEARER, *UPGRADE)):
        assert refusal_of(raw(gateway, method, path, headers=headers, body=b'{"tenant": "x"}')) == (403, "SB026")


@pytest.mark.parametrize(
    "path",
    [
        f"{path}/"
        for path in PRIVATE
        if not path.startswith("/api")
        and not path.endswith(("/files/nobody", "/files/serve/nobody", "/ports/nobody"))
        and path not in OF_SERVERS
        and path not in SLASHED
    ],
)
def test_a_path_with_a_trailing_slash_is_not_found(gateway: Gateway, path: str) -> None:
    for headers in ((), (BEARER,)):
        for method in ("GET", "POST", "DELETE"):
            assert refusal_of(raw(gateway, method, path, headers=headers, body=b'{"code": "1"}')) == (404, "SB022")


@pytest.mark.parametrize(
    "target", ["//v1/sessions", "/v1//sessions", "/v1/./sessions", "/V1/sessions", "/v1%2fsessions"]
)
def test_another_spelling_of_a_path_is_not_found(gateway: Gateway, target: str) -> None:
    assert failure(raw(gateway, "GET", target, headers=())) == (404, "SB022")


def test_a_key_in_the_url_is_refused_and_not_logged(gateway: Gateway) -> None:
    for name in ("key", "token", "api_key", "access_token"):
        target = f"/v1/sessions?{name}={KEYS['alice']}"
        assert failure(raw(gateway, "GET", target, headers=())) == (401, "SB020")
    assert KEYS["alice"] not in gateway.log.read_text()


@pytest.mark.parametrize(
    "header",
    [
        ("Authorization", f"bearer {KEYS['alice']}"),
        ("Authorization", f"token {KEYS['alice']}"),
        ("X-API-Key", KEYS["alice"]),
    ],
)
def test_a_key_can_be_carried_in_three_ways(gateway: Gateway, header: tuple[str, str]) -> None:
    assert raw(gateway, "GET", "/v1/sessions", headers=(header,)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        (("Authorization", "Bearer ключ".encode()),),
        (("Authorization", b"Bearer \xff\xfe"),),
        (("Authorization", f"Bearer {KEYS['alice']}é".encode("latin-1")),),
        (("Authorization", "Bearer " + "x" * 30_000),),
        (("Authorization", "Bearer"),),
        (("Authorization", "Bearer  "),),
        (("Authorization", ""),),
        (("X-API-Key", ""),),
        (BEARER, BEARER),
        (BEARER, ("Authorization", f"Bearer {KEYS['bob']}")),
        (("Authorization", "Bearer x"), ("Authorization", f"Bearer {KEYS['alice']}")),
        (("X-API-Key", KEYS["alice"]), ("X-API-Key", KEYS["bob"])),
    ],
    ids=repr,
)
def test_malformed_credentials_are_refused(gateway: Gateway, headers: tuple[tuple[str, str | bytes], ...]) -> None:
    assert failure(raw(gateway, "GET", "/v1/sessions", headers=headers)) == (401, "SB020")


def test_oversized_headers_are_cut_off_and_the_gateway_continues(gateway: Gateway) -> None:
    with pytest.raises((ConnectionError, OSError)):
        raw(gateway, "GET", "/v1/sessions", headers=(("Authorization", "Bearer " + "x" * 1_000_000),))
    assert raw(gateway, "GET", "/v1/sessions").status_code == 200


# -- hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8888", "127.0.0.1.evil.example", "localhost.evil", "[::2]", ""]
)
@pytest.mark.parametrize(
    "target", ["/v1/sessions", "/healthz", "/metrics", "/nowhere", f"/v1/sessions/{SHARED}/stream"]
)
def test_a_host_that_is_not_the_gateways_is_refused(gateway: Gateway, host: str, target: str) -> None:
    answer = raw(gateway, "GET", target, headers=(("Host", host), BEARER, *UPGRADE))
    assert failure(answer) == (421, "SB021")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8888"])
def test_a_loopback_host_is_accepted(gateway: Gateway, host: str) -> None:
    assert raw(gateway, "GET", "/v1/sessions", headers=(("Host", host), BEARER)).status_code == 200


def test_forwarded_hosts_do_not_change_the_host_check(gateway: Gateway) -> None:
    forwarded = (("X-Forwarded-Host", "localhost"), ("Forwarded", "host=localhost"))
    assert failure(raw(gateway, "GET", "/v1/sessions", headers=(("Host", "evil"), BEARER, *forwarded))) == (
        421,
        "SB021",
    )


def test_a_web_page_of_another_origin_opens_no_socket(gateway: Gateway) -> None:
    origin = ("Origin", "http://evil.example")
    answer = raw(gateway, "GET", f"/v1/sessions/{SHARED}/stream", headers=(BEARER, *UPGRADE, origin))
    assert answer.status_code == 403


# -- names -----------------------------------------------------------------------------------------------------

NAMES = [
    "b:c",
    "..",
    ".",
    "...",
    "a/b",
    "/",
    "x" * 65,
    "x" * 300,
    "Ⅸ",
    "é",
    "e\u0301",
    "a ",
    " a",
    "a\n",
    "a\0",
    "a\u200b",
    "\u202ea",
    "-rf",
    "_a",
    "$(x)",
    "`x`",
    "a;b",
    "🦊",
    "a\\b",
    "a%41",
]
ALLOWED = ["a", "A", "0", "a.", "a-b_c.d", "x" * 64]


def quoted(name: str) -> str:
    """Percent-encode every byte, so that no library on the way interprets the name."""
    return "".join(f"%{byte:02X}" for byte in name.encode())


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_invalid_session_name_is_refused_by_every_route(gateway: Gateway, name: str) -> None:
    body = json.dumps({"code": "1"}).encode()
    for method, rest in (
        ("POST", "/execute"),
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/files/?list"),
        ("PUT", "/files/f"),
    ):
        answer = raw(gateway, method, f"/v1/sessions/{quoted(name)}{rest}", body=body)
        assert failure(answer) == (400, "SB002")
    response = gateway.call("POST", "/v1/sessions", json={"name": name})
    assert failure(response) == (400, "SB002")


@pytest.mark.parametrize("name", ALLOWED, ids=lambda name: name[:10])
def test_a_valid_session_name_is_looked_up(gateway: Gateway, name: str) -> None:
    assert failure(raw(gateway, "GET", f"/v1/sessions/{quoted(name)}")) == (404, "SB011")


def test_an_empty_session_name_is_refused(gateway: Gateway) -> None:
    assert failure(raw(gateway, "POST", "/v1/sessions//execute", body=b'{"code": "1"}')) == (404, "SB022")
    assert failure(gateway.call("POST", "/v1/sessions", json={"name": ""})) == (400, "SB002")


def test_a_session_name_that_is_not_utf8_is_refused(gateway: Gateway) -> None:
    assert failure(raw(gateway, "GET", "/v1/sessions/%ff%fe")) == (400, "SB002")


# -- bodies ----------------------------------------------------------------------------------------------------


def cell(**fields: Any) -> bytes:
    """Return an execute body."""
    return json.dumps({"code": "1"} | fields).encode()


BODIES = {
    "no JSON": b"code=1",
    "half of it": b'{"code": "1"',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"code":' * 100_000,
    "deep and closed": b'{"code": "1", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a long number": b"1" * 5000,
    "a long timeout": b'{"code": "1", "timeout": ' + b"9" * 5000 + b"}",
    "a large timeout": b'{"code": "1", "timeout": 1e999}',
    "NaN": b'{"code": "1", "timeout": NaN}',
    "Infinity": b'{"code": "1", "timeout": Infinity}',
    "UTF-16": '{"code": "1"}'.encode("utf-16"),
    "UTF-32": '{"code": "1"}'.encode("utf-32"),
    "a BOM": b'\xef\xbb\xbf{"code": "1"}',
    "no UTF-8": b'{"code": "\xff"}',
    "half a character": b'{"code": "\\ud800"}',
    "the other half": b'{"code": "\\udc00 x"}',
    "half a character in stdin": b'{"code": "1", "stdin": ["\\ud800"]}',
    "a comment": b'{"code": "1"} // x',
    "two values": b'{"code": "1"}{"code": "1"}',
    "single quotes": b"{'code': '1'}",
    "nothing": b"",
    "null": b"null",
    "a list": b'["1"]',
    "a string": b'"1"',
    "a number": b"1",
    "no code": b"{}",
    "code 1": cell(code=1),
    "code null": cell(code=None),
    "code list": cell(code=["1"]),
    "code object": cell(code={}),
    "code true": cell(code=True),
    "code too long": cell(code="x" * (2 * 1024**2 + 1)),
    "timeout -1": cell(timeout=-1),
    "timeout 0": cell(timeout=0),
    "timeout -0.0": cell(timeout=-0.0),
    "timeout 1e9": cell(timeout=1e9),
    "timeout above the maximum": cell(timeout=600.001),
    "timeout text": cell(timeout="5"),
    "timeout true": cell(timeout=True),
    "timeout list": cell(timeout=[5]),
    "stdin text": cell(stdin="x"),
    "stdin numbers": cell(stdin=[1]),
    "store_history text": cell(store_history="no"),
    "store_history number": cell(store_history=0),
    "arguments list": cell(arguments=[1]),
    "arguments text": cell(arguments="a=1"),
    "idempotency_key empty": cell(idempotency_key=""),
    "idempotency_key too long": cell(idempotency_key="k" * 256),
    "idempotency_key number": cell(idempotency_key=1),
    "an unknown field": cell(colour="red"),
    "a field of Python's": cell(__class__="x"),
    "a long unknown field": cell(**{"x" * 100_000: 1}),
    "many unknown fields": cell(**{f"field{number}": 1 for number in range(50_000)}),
    "the domain's own field": cell(interactive=True),
    "too many lists": cell(arguments={"x": [[]] * 200_000}),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_invalid_execute_body_is_refused(gateway: Gateway, body: bytes) -> None:
    assert failure(raw(gateway, "POST", EXECUTE, body=body)) == (400, "SB002")


CREATES = {name: body for name, body in BODIES.items() if b"code" not in body and body not in {b"", b"{}"}} | {
    "a name and a field": b'{"name": "x", "code": "1"}',
    "nested": b'{"name": {"a": []}}',
}


@pytest.mark.parametrize("body", CREATES.values(), ids=CREATES)
def test_an_invalid_session_body_is_refused(gateway: Gateway, body: bytes) -> None:
    assert failure(raw(gateway, "POST", "/v1/sessions", body=body)) == (400, "SB002")


def test_deeply_nested_arguments_are_accepted_or_refused(gateway: Gateway) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    answer = raw(gateway, "POST", EXECUTE, body=b'{"code": "def main(a): pass", "arguments": {"a": ' + deep + b"}}")
    assert answer.status_code in {200, 400}
    assert b"Traceback" not in answer.content


@pytest.mark.parametrize(
    "body",
    [
        cell(),
        cell(timeout=600),
        cell(timeout=1e-300 + 5),
        cell(stdin=[]),
        cell(timeout=None),
        b'{"code": "2", "code": "1"}',
    ],
)
def test_a_valid_execute_body_is_accepted(gateway: Gateway, body: bytes) -> None:
    answer = raw(gateway, "POST", EXECUTE, body=body)
    assert (answer.status_code, answer.json["status"]) == (200, "ok")


def test_only_the_first_of_many_wrong_answers_is_named(gateway: Gateway) -> None:
    error = raw(gateway, "POST", EXECUTE, body=cell(stdin=[1] * 1000)).json["error"]
    assert [problem["field"] for problem in error["details"]["fields"]] == ["stdin.0"]


def test_a_refusal_names_the_field_and_what_to_do(gateway: Gateway) -> None:
    error = raw(gateway, "POST", EXECUTE, body=cell(timeout="5")).json["error"]
    assert error["name"] == "InvalidRequest"
    assert error["message"].startswith("timeout: ")
    assert error["resolution"]
    assert re.fullmatch("[0-9a-f]{16}", error["request_id"])


# -- sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [EXECUTE, "/v1/sessions", f"/v1/sessions/{SHARED}/interrupt"])
def test_a_body_of_five_megabytes_is_too_large(gateway: Gateway, target: str) -> None:
    assert failure(gateway.call("POST", target, data=b"x" * 5_000_000)) == (413, "SB024")


def test_a_body_of_exactly_the_size_limit_is_read(gateway: Gateway) -> None:
    assert failure(gateway.call("POST", EXECUTE, data=b" " * MAX_BODY)) == (400, "SB002")


@pytest.mark.parametrize("length", ["10000000000000", "-1", "+4", "4, 5", "x"])
def test_an_impossible_content_length_is_refused_before_the_body_is_read(gateway: Gateway, length: str) -> None:
    answer = raw(gateway, "POST", EXECUTE, headers=(BEARER, ("Content-Length", length)))
    assert answer.status_code in {400, 413}


def test_an_oversized_chunked_body_is_cut_off(gateway: Gateway) -> None:
    def pieces() -> Any:
        yield from (b"x" * 65536 for _ in range(100))

    try:
        response = gateway.call("POST", EXECUTE, data=pieces())
    except OSError:
        pass  # the gateway closed the connection during the write
    else:
        assert response.status_code in {400, 413}
    assert gateway.text(SHARED, "1") == "1"


def test_a_missing_key_is_reported_before_the_body_is_sent(gateway: Gateway) -> None:
    for method, target in (("POST", EXECUTE), ("PUT", f"/v1/sessions/{SHARED}/files/f")):
        answer = raw(gateway, method, target, headers=(("Content-Length", "4000000"),))
        assert failure(answer) == (401, "SB020")


@pytest.mark.parametrize(("method", "target"), [("POST", EXECUTE), ("GET", "/v1/sessions"), ("POST", "/nowhere")])
@pytest.mark.parametrize("size", [0, 2, 100_000])
def test_a_client_that_keeps_its_connection_receives_every_refusal(
    gateway: Gateway, method: str, target: str, size: int
) -> None:
    with requests.Session() as client:
        for _ in range(30):
            headers = {"Authorization": "Bearer not-a-key-at-all"}
            response = client.request(method, gateway.url + target, data=b"x" * size, headers=headers, timeout=10)
            assert response.status_code in {401, 404}


# -- methods and paths -----------------------------------------------------------------------------------------


#: paths that accept PATCH, and a path that is absent for every method
_OTHERWISE = {"/api/sessions/nobody", "/api/contents", "/api/nobody", *OF_SERVERS}


@pytest.mark.parametrize("path", [path for path in OF_USERS if path not in _OTHERWISE])
@pytest.mark.parametrize("method", ["PATCH", "OPTIONS"])
def test_a_method_that_a_path_does_not_know_is_refused(gateway: Gateway, method: str, path: str) -> None:
    for headers in ((BEARER,), (BEARER, *UPGRADE)):
        assert refusal_of(raw(gateway, method, path, headers=headers)) == (405, "SB023")
    assert failure(raw(gateway, "GET", "/v1/sessions/nobody")) == (404, "SB011")


def test_get_requests_change_nothing(gateway: Gateway) -> None:
    gateway.execute(SHARED, "x = 1")
    for call in ("execute", "interrupt", "restart"):
        assert failure(gateway.call("GET", f"/v1/sessions/{SHARED}/{call}")) == (405, "SB023")
    assert failure(raw(gateway, "GET", f"/v1/sessions/{SHARED}/restart?_method=POST")) == (405, "SB023")
    override = (BEARER, ("X-HTTP-Method-Override", "DELETE"))
    assert raw(gateway, "GET", f"/v1/sessions/{SHARED}", headers=override).status_code == 200
    assert gateway.text(SHARED, "x") == "1"


@pytest.mark.parametrize(
    "target", ["/v1", "/v2/sessions", "/v1/sessions/x/nothing", "/admin/nothing", "/v1/openapi.jsonx", "/%00"]
)
def test_an_unknown_path_is_not_found(gateway: Gateway, target: str) -> None:
    assert failure(raw(gateway, "GET", target)) == (404, "SB022")


def test_every_answer_has_security_headers_and_a_request_id(gateway: Gateway) -> None:
    for target in ("/v1/sessions", "/nowhere", "/healthz", f"/v1/sessions/{SHARED}/notebook"):
        headers = raw(gateway, "GET", target).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Request-Id"]
        assert "Server" not in headers


def test_a_refusal_is_logged_with_the_request_id_that_the_client_received(gateway: Gateway) -> None:
    told = raw(gateway, "GET", "/v1/sessions/nobody").headers["X-Request-Id"]
    (entry,) = until(lambda: [entry for entry in gateway.logged() if entry.get("request_id") == told])
    assert (entry["event"], entry["status"], entry["tenant"]) == ("request", 404, "alice")
