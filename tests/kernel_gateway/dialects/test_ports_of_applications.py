"""Real web applications in a sandbox, by the native route and by E2B's host names: Streamlit by WebSocket, Gradio by
events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests import gateways
from tests.gateways import KEYS, Gateway, text_of
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.e2b import boxed
from tests.kernel_images import image_with_packages

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(600)]

DOMAIN = "gw.test"
STREAMLIT = """
import subprocess, sys
open("page.py", "w").write("import streamlit as st\\nst.title('hello from ' + 'streamlit')")
options = ["--server.port=8501", "--server.headless=true", "--browser.gatherUsageStats=false", *{more}]
log = open("log", "w")
server = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "page.py", *options], stdout=log, stderr=log)
"""
#: what docs/ports.md says of Streamlit on the gateway's own origin, where a page's requests have the origin `null`
ON_OUR_ORIGIN = ("--server.enableCORS=false", "--server.enableXsrfProtection=false")
GRADIO = """
import os
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
import gradio
page = gradio.Interface(lambda name: "hello " + name, "text", "text", api_name="predict")
_ = page.launch(server_port=7860, prevent_thread_lock=True, quiet=True)
print("begun")
"""
#: Streamlit's `BackMsg` with an empty `rerun_script`, its field 11: a browser asks for the page with it
RERUN = b"\x5a\x00"


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    image = image_with_packages("applications", "streamlit", "gradio")
    with gateways.gateway(
        "docker", image=image, memory="1g", execute_timeout="120", allowed_hosts=f"*.{DOMAIN}"
    ) as serving:
        yield serving
        assert serving.errors() == []


@dataclass(frozen=True)
class Site:
    """A sandbox, and its servers as a client reaches them."""

    #: runs code in the sandbox, and returns its output as text
    run: Callable[[str], str]
    #: options of Streamlit that a page on this site needs
    options: tuple[str, ...]
    gateway: Gateway
    #: path of the server's `/`
    root: str
    headers: dict[str, str]
    #: origin of the server's pages, as a browser names it
    origin: str

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request to a server."""
        return self.gateway.call(method, f"{self.root}{path}", tenant=None, headers=self.headers, **options)


@contextmanager
def by_path(gateway: Gateway, port: int) -> Iterator[Site]:
    """A session, whose servers the native route reaches."""
    name = f"site-{port}"
    key = {"Authorization": f"Bearer {KEYS['alice']}"}
    yield Site(
        lambda code: text_of(gateway.execute(name, code)),
        ON_OUR_ORIGIN,
        gateway,
        f"/v1/sessions/{name}/ports/{port}",
        key,
        "null",
    )
    gateway.call("DELETE", f"/v1/sessions/{name}")


@contextmanager
def by_host(gateway: Gateway, port: int) -> Iterator[Site]:
    """A sandbox of E2B, whose servers have host names. They are public, and need no special options."""
    with boxed(gateway) as box:
        host = f"{port}-{box.id}.{DOMAIN}"
        yield Site(lambda code: json.dumps(box.run(code)), (), gateway, "", {"Host": host}, f"http://{host}")


SITES = pytest.mark.parametrize("site", [by_path, by_host], ids=["native", "e2b"])
Sites = Callable[[Gateway, int], Any]


@SITES
async def test_a_page_of_streamlit_is_reached_by_http_and_websocket(serving: Gateway, site: Sites) -> None:
    with site(serving, 8501) as page:
        page.run(STREAMLIT.format(more=page.options))
        until(lambda: page.call("GET", "/_stcore/health").text == "ok")
        assert "<title>Streamlit</title>" in page.call("GET", "/").text
        url = f"{serving.url}{page.root}/_stcore/stream".replace("http", "ws", 1)
        request = HTTPRequest(url, headers=page.headers | {"Origin": page.origin}, request_timeout=30)
        socket = await websocket_connect(request, subprotocols=["streamlit"])
        await socket.write_message(RERUN, binary=True)
        received = b""
        while b"hello from streamlit" not in received:
            message = await socket.read_message()
            assert isinstance(message, bytes), page.run("print(open('log').read())")
            received += message
        socket.close()
        while await socket.read_message() is not None:
            pass


@SITES
def test_a_page_of_gradio_is_reached_and_answers_in_events(serving: Gateway, site: Sites) -> None:
    with site(serving, 7860) as page:
        assert "begun" in (told := page.run(GRADIO)), told
        assert "gradio" in page.call("GET", "/").text
        # By the endpoint for programs
        begun = page.call("POST", "/gradio_api/call/predict", json={"data": ["tea"]})
        assert begun.status_code == 200, begun.text
        told = page.call("GET", f"/gradio_api/call/predict/{begun.json()['event_id']}").text
        assert 'data: ["hello tea"]' in told
        # By the queue, as the page itself does
        asked = {"data": ["milk"], "fn_index": 0, "session_hash": "mine"}
        assert page.call("POST", "/gradio_api/queue/join", json=asked).status_code == 200
        with page.call("GET", "/gradio_api/queue/data?session_hash=mine", stream=True) as events:
            lines = [json.loads(line.removeprefix(b"data: ")) for line in events.iter_lines() if line]
        assert [line["output"]["data"] for line in lines if line["msg"] == "process_completed"] == [["hello milk"]]
