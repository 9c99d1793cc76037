"""Servers that code starts in a sandbox, reached through a real gateway: by path, by link, and by E2B's host names."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from e2b_code_interpreter import Sandbox
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from kernel_gateway.dialects.e2b.ports import INVALID, MISSING, NOT_RESUMED
from kernel_gateway.ports.headers import SANDBOX
from sessions.ports.ports import LINGER
from tests import gateways
from tests.figures import hold
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import failure, metric, until
from tests.kernel_gateway.e2b import NOWHERE, Box, boxed, control
from tests.kernel_gateway.servers import START

MIB = 1024**2
#: the only domain that the gateway answers to besides loopback
DOMAIN = "gw.test"
PAGE = Path(__file__).parents[3] / "docs/ports.md"
DEMO = "/v1/sessions/demo/ports"

engine = pytest.mark.engine


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    """A gateway whose session `demo` of alice has all servers."""
    with gateways.gateway("docker", allowed_hosts=f"*.{DOMAIN}", pool_size="1") as serving:
        serving.execute("demo", START, timeout=60)
        for path in "8000/seen", "8001/ws", "8002/", "8003/":
            until(partial(listens, serving, path))
        yield serving
        assert serving.errors() == []


def listens(gateway: Gateway, path: str) -> bool:
    """Return whether a server of the session `demo` answers."""
    return gateway.call("GET", f"{DEMO}/{path}").status_code != HTTPStatus.BAD_GATEWAY


def seen(gateway: Gateway, method: str = "GET", rest: str = "seen", **options: Any) -> dict[str, Any]:
    """Return what the server has seen of a request."""
    answer = gateway.call(method, f"{DEMO}/8000/{rest}", **options)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.fixture(scope="module")
def unreached() -> Iterator[Gateway]:
    """A gateway that reaches no servers, because its kernels have no sandbox."""
    with gateways.gateway("process", allowed_hosts=f"*.{DOMAIN}") as serving:
        yield serving


def test_without_a_sandbox_no_server_is_reached(unreached: Gateway) -> None:
    unreached.execute("demo", "1")
    refused = unreached.call("GET", f"{DEMO}/8000/")
    assert failure(refused) == (501, "SB061")
    assert "this machine's" in refused.text


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_a_browser_gets_a_page_that_tells_of_a_failure(unreached: Gateway) -> None:
    unreached.execute("demo", "1")
    page = unreached.call("GET", f"{DEMO}/8000/", headers=BROWSER)
    assert (page.status_code, page.headers["Content-Type"]) == (501, "text/html; charset=utf-8")
    assert "<h1>501 Not Implemented</h1>" in page.text
    assert all(text in page.text for text in ("this machine&#x27;s", "SB061", page.headers["X-Request-Id"]))
    assert "default-src &#x27;none&#x27;" not in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    link = unreached.call("GET", "/v1/ports/alice/demo/8000/%3Cb%3E/", tenant=None, headers=BROWSER)
    assert (link.status_code, "<b>" in link.text, "the link is not valid" in link.text) == (401, False, True)
    for host, status, text in (
        (f"8000-{NOWHERE}", 502, "The sandbox was not found"),
        (f"99999-{NOWHERE}", 400, "Invalid sandbox port"),
    ):
        named = unreached.call("GET", "/", tenant=None, headers={"Host": f"{host}.{DOMAIN}"} | BROWSER)
        assert (named.status_code, text in named.text, "<h1>" in named.text) == (status, True, True)
    program = unreached.call("GET", f"{DEMO}/8000/", headers={"Accept": "text/html, application/json"})
    assert failure(program) == (501, "SB061")


# -- by path ---------------------------------------------------------------------------------------------------


@engine
@pytest.mark.gate
@pytest.mark.parametrize("port", [8002, 8003], ids=["loopback", "every address"])
def test_a_servers_pages_are_reached_on_every_address(serving: Gateway, port: int) -> None:
    page = serving.call("GET", f"{DEMO}/{port}/")
    assert (page.status_code, page.text) == (200, "<h1>hi</h1>")
    assert page.headers["Content-Security-Policy"] == SANDBOX
    assert serving.call("GET", f"{DEMO}/{port}/nothing").status_code == 404
    head = serving.call("HEAD", f"{DEMO}/{port}/index.html")
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "11", b"")


@engine
def test_a_request_arrives_as_it_was_sent_but_for_credentials(serving: Gateway) -> None:
    headers = {
        "Cookie": "a=1",
        "X-Mine": "ä".encode("latin1"),
        "X-API-Key": KEYS["alice"],
        "X-Forwarded-For": "1.2.3.4",
    }
    told = seen(serving, "POST", "seen?a=%2Fb&token=x", data=b"12345", headers=headers)
    assert (told["method"], told["target"], told["body"]) == ("POST", "/seen?a=%2Fb&token=x", 5)
    assert (told["headers"]["host"], told["headers"]["x-mine"]) == ("localhost:8000", "ä")
    assert not {"cookie", "authorization", "x-api-key", "x-forwarded-for"} & told["headers"].keys()
    assert KEYS["alice"] not in json.dumps(told)
    for method in "PUT", "PATCH", "DELETE", "OPTIONS":
        assert seen(serving, method)["method"] == method
    assert seen(serving, "POST", data=(bytes(10000) for _ in range(5)))["body"] == 50000  # in chunks


@engine
def test_events_arrive_while_the_server_still_sends(serving: Gateway) -> None:
    with serving.call("GET", f"{DEMO}/8000/events", stream=True) as answer:
        times = [(line, time.monotonic()) for line in answer.iter_lines() if line]
    assert [line for line, _ in times] == [b"data: 0", b"data: 1", b"data: 2"]
    assert times[2][1] - times[0][1] > 0.3


@engine
def test_who_may_reach_a_port(serving: Gateway) -> None:
    assert serving.call("GET", f"{DEMO}/8002/", tenant=None).status_code == 401
    assert serving.call("GET", f"{DEMO}/8002/?token={KEYS['alice']}", tenant=None).status_code == 401
    assert failure(serving.call("GET", f"{DEMO}/8002/", tenant="bob")) == (404, "SB011")
    assert failure(serving.call("GET", "/v1/sessions/other/ports/8002/")) == (404, "SB011")


@engine
def test_ports_that_are_none_are_refused(serving: Gateway) -> None:
    closed = serving.call("GET", f"{DEMO}/8099/")
    assert failure(closed) == (502, "SB060")
    for port in "0", "65536", "x", "-1":
        assert (answer := serving.call("GET", f"{DEMO}/{port}/")).status_code == 400, answer.text
    told = serving.text("demo", "import ipykernel; print(ipykernel.get_connection_info())")
    own = [value for name, value in json.loads(told).items() if name.endswith("_port")]
    assert len(own) == 5
    for port in own:
        answer = serving.call("GET", f"{DEMO}/{port}/")
        assert (answer.status_code, "kernel's own" in answer.text) == (400, True)


@engine
def test_a_path_without_its_slash_is_redirected(serving: Gateway) -> None:
    assert serving.call("GET", f"{DEMO}/8002").text == "<h1>hi</h1>"


@engine
def test_the_example_of_the_page_works(serving: Gateway) -> None:
    [code] = re.findall("```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for shown, own in (
        ("http://127.0.0.1:8888", serving.url),
        ("KEY", KEYS["alice"]),
        ("demo", "page"),
        ("8000", "8105"),
    ):
        assert shown in code
        code = code.replace(shown, own)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert "Directory listing" in done.stdout


@engine
@pytest.mark.full
def test_large_bodies_take_little_memory(serving: Gateway) -> None:
    def download() -> int:
        with serving.call("GET", f"{DEMO}/8000/large", stream=True) as answer:
            return sum(len(piece) for piece in answer.iter_content(65536))

    with serving.growth() as small:
        assert seen(serving, "POST", data=bytes(MIB))["body"] == MIB
    with serving.growth() as large:
        assert download() == 50 * MIB
        assert seen(serving, "POST", data=bytes(50 * MIB))["body"] == 50 * MIB
    hold("memory for 50 MiB from and to a server", large.bytes, max(small.bytes, 4 * MIB), "MiB")


@engine
def test_an_answer_before_the_end_of_the_body_arrives(serving: Gateway) -> None:
    answer = serving.call("POST", f"{DEMO}/8000/early", data=bytes(2 * MIB))
    assert (answer.status_code, answer.text) == (413, "big")


@engine
def test_a_sleeping_server_does_not_keep_its_session_awake_for_ever(serving: Gateway) -> None:
    serving.call("GET", f"{DEMO}/8002/")
    time.sleep(LINGER + 1)
    processes = serving.text("demo", "print(subprocess.run(['ps', 'ax'], capture_output=True, text=True).stdout)")
    assert "/opt/kernel/ports.py" not in processes


# -- hostile servers -------------------------------------------------------------------------------------------


@engine
@pytest.mark.gate
@pytest.mark.parametrize("path", ["endless-headers", "garbage", "preliminary", "upgrade"])
def test_what_is_no_answer_is_a_failure_of_the_server(serving: Gateway, path: str) -> None:
    answer = serving.call("GET", f"{DEMO}/8000/{path}", timeout=20)
    assert failure(answer) == (502, "SB062")
    assert b"forged" not in answer.content
    assert seen(serving)["method"] == "GET"  # the server is reached as before


@engine
@pytest.mark.parametrize("path", ["chunk", "short"])
def test_an_answer_that_is_cut_is_seen_as_cut(serving: Gateway, path: str) -> None:
    with pytest.raises(requests.exceptions.ChunkedEncodingError):  # not whole
        serving.call("GET", f"{DEMO}/8000/{path}", timeout=20)
    assert seen(serving)["method"] == "GET"


@engine
def test_one_request_gets_one_answer(serving: Gateway) -> None:
    with contextlib.closing(HTTPConnection(urlsplit(serving.url).netloc, timeout=20)) as client:
        for path, text in (("two-answers", b"abc"), ("seen", b'"target": "/seen"')):
            client.request("GET", f"{DEMO}/8000/{path}", headers={"Authorization": f"Bearer {KEYS['alice']}"})
            content = client.getresponse().read()
            assert text in content
            assert b"forged" not in content


@engine
def test_a_server_changes_nothing_of_the_gateways_origin(serving: Gateway) -> None:
    answer = serving.call("GET", f"{DEMO}/8000/cookies")
    assert (answer.text, answer.headers["X-Own"]) == ("hi", "1")
    assert not {"Set-Cookie", "Service-Worker-Allowed"} & answer.headers.keys()
    redirect = serving.call("GET", f"{DEMO}/8000/redirect", allow_redirects=False)
    assert (redirect.status_code, redirect.headers["Location"]) == (302, "/v1/sessions")


@engine
def test_a_client_that_reads_nothing_and_one_that_leaves_harm_nobody(serving: Gateway) -> None:
    stuck = serving.call("GET", f"{DEMO}/8000/endless-body", stream=True)
    silent = serving.call("GET", f"{DEMO}/8000/events", stream=True)
    silent.close()
    for _ in range(5):
        assert seen(serving)["method"] == "GET"
    stuck.close()


# -- WebSockets ------------------------------------------------------------------------------------------------


async def connect(url: str, **headers: str) -> WebSocketClientConnection:
    return await websocket_connect(HTTPRequest(url.replace("http", "ws", 1), headers=headers, request_timeout=30))


async def echoed(socket: WebSocketClientConnection) -> None:
    for message in ("hello", b"\x00\xff" * 50_000):
        await socket.write_message(message, binary=isinstance(message, bytes))
        assert await socket.read_message() == message


@engine
@pytest.mark.gate
async def test_websockets_pass_with_a_key_and_with_a_link(serving: Gateway) -> None:
    socket = await connect(f"{serving.url}{DEMO}/8001/ws", Authorization=f"Bearer {KEYS['alice']}")
    await echoed(socket)
    assert metric(serving, "kernel_gateway_port_connections") >= 1
    socket.close()
    assert await socket.read_message() is None
    socket = await connect(f"{link(serving, 8001)}ws")
    await echoed(socket)
    socket.close()
    assert await socket.read_message() is None
    with pytest.raises(HTTPClientError, match="401"):
        await connect(f"{serving.url}{DEMO}/8001/ws")
    with pytest.raises(HTTPClientError, match="502"):
        await connect(f"{serving.url}{DEMO}/8099/ws", Authorization=f"Bearer {KEYS['alice']}")


@engine
async def test_a_websocket_ends_with_its_link(serving: Gateway) -> None:
    socket = await connect(f"{link(serving, 8001, seconds=2)}ws")
    await echoed(socket)
    assert await socket.read_message() is None
    socket.close()


# -- links -----------------------------------------------------------------------------------------------------


def link(gateway: Gateway, port: int, **body: Any) -> str:
    """Return a new link to a port of the session `demo`."""
    made = gateway.call("POST", "/v1/sessions/demo/links", json={"port": port, **body})
    assert made.status_code == 201, made.text
    assert made.json()["url"] == gateway.url + made.json()["path"]
    return str(made.json()["url"])


@engine
@pytest.mark.gate
def test_a_link_opens_one_port_for_everyone_until_it_ends(serving: Gateway) -> None:
    url = link(serving, 8002, seconds=3)
    assert requests.get(url.rstrip("/"), timeout=20).text == "<h1>hi</h1>", "people leave the last slash out"
    page = requests.get(url, headers={"Origin": "null"}, timeout=20)
    assert (page.text, page.headers["Content-Security-Policy"]) == ("<h1>hi</h1>", SANDBOX)
    assert (page.headers["Access-Control-Allow-Origin"], page.headers["Referrer-Policy"]) == ("*", "no-referrer")
    asked = {"Origin": "null", "Access-Control-Request-Method": "PUT"}
    assert requests.options(url, headers=asked, timeout=20).status_code == 200
    assert requests.get(url.replace("/8002/", "/8003/"), timeout=20).status_code == 401
    assert requests.get(url.replace("/demo/", "/other/"), timeout=20).status_code == 401
    assert requests.get(url.replace("/alice/", "/bob/"), timeout=20).status_code == 401
    token = url.split("/")[-2]
    assert not any(token in json.dumps(record) for record in serving.logged())
    until(lambda: requests.get(url, timeout=20).status_code == 401)


@engine
def test_a_link_ends_with_its_key_and_with_its_session(serving: Gateway) -> None:
    key = serving.call("GET", "/readyz", tenant=None)
    assert key.status_code == 200
    admin = {"Authorization": f"Bearer {serving.admin_key()}"}
    made = serving.call("POST", "/v1/admin/keys", tenant=None, headers=admin, json={"tenant": "alice"}).json()
    mine = {"Authorization": f"Bearer {made['key']}"}
    told = serving.call("POST", "/v1/sessions/demo/links", tenant=None, headers=mine, json={"port": 8002}).json()
    assert requests.get(told["url"], timeout=20).status_code == 200
    serving.call("DELETE", f"/v1/admin/keys/{made['id']}", tenant=None, headers=admin)
    assert requests.get(told["url"], timeout=20).status_code == 401
    name = f"short-{secrets.token_hex(4)}"
    serving.execute(name, "1")
    told = serving.call("POST", f"/v1/sessions/{name}/links", json={"port": 8099}).json()
    assert requests.get(told["url"], timeout=20).status_code == 502
    serving.call("DELETE", f"/v1/sessions/{name}")
    assert requests.get(told["url"], timeout=20).status_code == 401
    serving.execute(name, "1")
    assert requests.get(told["url"], timeout=20).status_code == 401
    serving.call("DELETE", f"/v1/sessions/{name}")


@engine
@pytest.mark.parametrize(
    "body", [{}, {"port": 0}, {"port": 8000, "seconds": 86401}, {"port": 8000, "seconds": 0}], ids=str
)
def test_links_that_cannot_be_are_refused(serving: Gateway, body: dict[str, Any]) -> None:
    assert serving.call("POST", "/v1/sessions/demo/links", json=body).status_code == 400


# -- E2B -------------------------------------------------------------------------------------------------------


def visit(gateway: Gateway, host: str, path: str = "/", **headers: str) -> requests.Response:
    """Send a request to a host name, which no resolver knows."""
    return requests.get(f"{gateway.url}{path}", headers={"Host": host, **headers}, timeout=60, allow_redirects=False)


#: starts a server; a kernel that sleeps wakes with it
SERVER = "import subprocess, sys; server = subprocess.Popen([sys.executable, '-m', 'http.server', '{port}'])"


def start(box: Box, port: int) -> None:
    box.run("import subprocess, sys; open('index.html', 'w').write('<h1>hi</h1>')")
    box.run(f"subprocess.Popen([sys.executable, '-m', 'http.server', '{port}', '--bind', '127.0.0.1'])")


@engine
@pytest.mark.gate
def test_the_sdks_host_reaches_servers_of_code_and_of_commands(serving: Gateway) -> None:
    own = {"api_key": KEYS["alice"], "api_url": serving.url, "sandbox_url": serving.url, "domain": DOMAIN}
    sandbox = Sandbox.create(timeout=300, **own)
    try:
        sandbox.files.write("index.html", "by code")
        sandbox.commands.run("python3 -m http.server 8101", background=True)
        sandbox.run_code("import subprocess, sys; server = [sys.executable, '-m', 'http.server', '8102']")
        sandbox.run_code("subprocess.Popen([*server, '--bind', '127.0.0.1'])")
        for port in 8101, 8102:
            host = sandbox.get_host(port)
            assert host == f"{port}-{sandbox.sandbox_id}.{DOMAIN}"
            page = visit(serving, host)
            assert (page.status_code, page.text) == (200, "by code")
            assert "sandbox" not in page.headers.get("Content-Security-Policy", "")
        assert visit(serving, f"8101-{sandbox.sandbox_id}-preview.{DOMAIN}").text == "by code"
        named = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8101"}
        by_headers = requests.get(serving.url, headers=named, timeout=60)
        assert (by_headers.text, by_headers.headers["Content-Security-Policy"]) == ("by code", SANDBOX)
    finally:
        sandbox.kill()
    assert visit(serving, host).status_code == 502


@engine
def test_ports_of_sandboxes_answer_as_e2bs_proxy(serving: Gateway) -> None:
    with boxed(serving) as box:
        closed = visit(serving, f"8123-{box.id}.{DOMAIN}")
        told = {
            "sandboxId": box.id,
            "message": "The sandbox is running but port is not open",
            "code": 502,
            "port": 8123,
        }
        assert (closed.status_code, closed.json()) == (502, told)
        gone = visit(serving, f"8123-{NOWHERE}.{DOMAIN}")
        assert (gone.status_code, gone.json()) == (
            502,
            {"sandboxId": NOWHERE, "message": "The sandbox was not found", "code": 502},
        )
        wrong = visit(serving, f"70000-{box.id}.{DOMAIN}")
        assert (wrong.status_code, wrong.text) == (400, "Invalid sandbox port")
        own = box.text("import ipykernel, json; json.loads(ipykernel.get_connection_info())['shell_port']")
        refused = visit(serving, f"{own}-{box.id}.{DOMAIN}")
        assert (refused.status_code, "kernel's own" in refused.text) == (400, True)


@engine
def test_a_private_sandbox_wants_its_token(serving: Gateway) -> None:
    with boxed(serving, network={"allowPublicTraffic": False, "maskRequestHost": "inner:${PORT}"}) as box:
        token = control(serving, "GET", f"/sandboxes/{box.id}").json()["trafficAccessToken"]
        start(box, 8103)
        host, headers = f"8103-{box.id}.{DOMAIN}", {"E2b-Traffic-Access-Token": token}
        missing = visit(serving, host)
        assert (missing.status_code, missing.json()) == (403, {"sandboxId": box.id, "message": MISSING, "code": 403})
        invalid = visit(serving, host, **{"E2b-Traffic-Access-Token": "x"})
        assert (invalid.status_code, invalid.json()["message"]) == (403, INVALID)
        assert visit(serving, host, Authorization=f"Bearer {KEYS['alice']}").status_code == 403
        assert visit(serving, host, **headers).text == "<h1>hi</h1>"
        control(serving, "PUT", f"/sandboxes/{box.id}/network", json={"denyOut": ["0.0.0.0/0"]})
        assert visit(serving, host).status_code == 403  # other rules do not make it public


@engine
def test_a_host_of_its_own_has_its_own_cookies_and_keys(serving: Gateway) -> None:
    with boxed(serving) as box:
        box.run(START)
        host = f"8000-{box.id}.{DOMAIN}"
        cookies = visit(serving, host, "/cookies")
        assert cookies.headers["Set-Cookie"] == "a=1"
        told = visit(serving, host, "/seen", Cookie="a=1", Authorization="Bearer for the server").json()["headers"]
        assert (told["cookie"], told["authorization"], told["host"]) == ("a=1", "Bearer for the server", host)
        told = visit(serving, host, "/seen", Authorization=f"Bearer {KEYS['alice']}").json()["headers"]
        assert "authorization" not in told


@engine
def test_traffic_wakes_a_paused_sandbox_only_if_its_client_wants_that(serving: Gateway) -> None:
    with boxed(serving, autoPause=True, autoResume={"enabled": True}, network={"allowPublicTraffic": False}) as box:
        token = control(serving, "GET", f"/sandboxes/{box.id}").json()["trafficAccessToken"]
        start(box, 8104)
        host, headers = f"8104-{box.id}.{DOMAIN}", {"E2b-Traffic-Access-Token": token}
        assert visit(serving, host, **headers).status_code == 200
        assert control(serving, "POST", f"/sandboxes/{box.id}/pause", json={}).status_code == 204
        refused = visit(serving, host)
        assert (refused.status_code, refused.json()["message"]) == (403, NOT_RESUMED)
        assert control(serving, "GET", f"/sandboxes/{box.id}").json()["state"] == "paused"
        assert visit(serving, host, **headers).text == "<h1>hi</h1>"
        assert control(serving, "GET", f"/sandboxes/{box.id}").json()["state"] == "running"
    with boxed(serving) as box:
        start(box, 8104)
        assert control(serving, "POST", f"/sandboxes/{box.id}/pause", json={}).status_code == 204
        assert visit(serving, f"8104-{box.id}.{DOMAIN}").json()["message"] == "The sandbox was not found"


@engine
def test_traffic_wakes_what_is_on_disk() -> None:
    with gateways.gateway("docker", allowed_hosts=f"*.{DOMAIN}", golden_images="auto", pool_max="0") as gateway:
        gateway.wait_for_sleep()
        asked = {"name": "own", "on_idle": "sleep", "idle_timeout": 1}
        assert gateway.call("POST", "/v1/sessions", json=asked).status_code == 201
        gateway.execute("own", SERVER.format(port=8106))
        until(lambda: gateway.call("GET", "/v1/sessions/own").json()["state"] == "asleep")
        assert gateway.call("GET", "/v1/sessions/own/ports/8106/").status_code == 200
        reply = gateway.execute("own", "server.poll()")
        assert (reply["state"], reply["status"]) == ("preserved", "ok")
        gateway.call("DELETE", "/v1/sessions/own")
        with boxed(gateway, autoPause=True, autoResume={"enabled": True}) as box:
            box.run(SERVER.format(port=8107))
            [context] = [each["name"] for each in gateway.call("GET", "/v1/sessions").json()["sessions"]]
            assert control(gateway, "POST", f"/sandboxes/{box.id}/pause", json={}).status_code == 204
            assert gateway.call("GET", f"/v1/sessions/{context}").json()["state"] == "asleep"
            assert visit(gateway, f"8107-{box.id}.{DOMAIN}").status_code == 200
            assert gateway.call("GET", f"/v1/sessions/{context}").json()["state"] == "idle"
        assert gateway.errors() == []


@engine
async def test_a_pause_ends_websockets(serving: Gateway) -> None:
    with boxed(serving) as box:
        box.run(START)
        host = f"8001-{box.id}.{DOMAIN}"
        until(lambda: visit(serving, host, "/ws").status_code != 502)
        socket = await connect(f"{serving.url}/ws", Host=host)
        await echoed(socket)
        control(serving, "POST", f"/sandboxes/{box.id}/pause", json={})
        assert await socket.read_message() is None
        socket.close()
