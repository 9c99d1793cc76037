"""Makes the tests of Jupyter's own servers talk to a gateway. `test_jupyter_suites.py` copies it beside them.

The fixtures replace those that start a server in the tests' process. It runs in an environment of its own, without
this project, whose variables name the gateway (`GATEWAY`, `KEY`) and a file with the tests that do not apply
(`NOT_OURS`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from tornado.httpclient import HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

GATEWAY, KEY = os.environ["GATEWAY"], os.environ["KEY"]
#: reasons, by test
NOT_OURS: dict[str, str] = json.loads(Path(os.environ["NOT_OURS"]).read_text())
#: The only header that is not held against the suite's expectation: the gateway's own is stricter.
HEADER, EXPECTED = (
    "Content-Security-Policy",
    "frame-ancestors 'self'; report-uri /api/security/csp-report; default-src 'none'",
)


class Client:
    """Fetches paths from the gateway."""

    def __init__(self) -> None:
        self._http = SimpleAsyncHTTPClient(force_instance=True)

    async def fetch(self, path: str, **options: Any) -> HTTPResponse:
        response = await self._http.fetch(GATEWAY + path, **options)
        assert response.headers[HEADER].startswith("default-src 'none'; frame-ancestors 'none'")
        response.headers[HEADER] = EXPECTED
        return response

    def close(self) -> None:
        self._http.close()


def ask(method: str, path: str, body: object = None) -> Any:
    key = {"Authorization": f"Bearer {KEY}"}
    answer = requests.request(method, GATEWAY + path, headers=key, json=body, timeout=60)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each test once: its parameters are ways to run the server. Tests that do not apply must fail."""
    known = set()
    for item in list(items):
        name = item.nodeid.partition("tests/")[2]
        if any(f"server_config{number}" in name for number in (1, 2, 3)):
            items.remove(item)
            continue
        reason = next((NOT_OURS[key] for key in (name, name.partition("[")[0]) if key in NOT_OURS), None)
        if reason is not None:
            known |= {name, name.partition("[")[0]}
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    assert set(NOT_OURS) <= known, f"no such tests: {set(NOT_OURS) - known}"


@pytest.fixture
def jp_base_url() -> str:
    return "/"


@pytest.fixture
def jp_auth_header() -> dict[str, str]:
    return {"Authorization": f"token {KEY}"}


@pytest.fixture
def jp_http_port() -> int | None:
    return urlsplit(GATEWAY).port


@pytest.fixture
def jp_serverapp(jp_root_dir: Path) -> SimpleNamespace:
    """What tests read of the server's objects."""
    kernels = SimpleNamespace(get_kernel=lambda kernel: ask("GET", f"/api/kernels/{kernel}"), use_pending_kernels=False)
    return SimpleNamespace(kernel_manager=kernels, root_dir=str(jp_root_dir))


@pytest.fixture
def jp_web_app() -> SimpleNamespace:
    """What tests change of the server's settings, without effect."""
    return SimpleNamespace(settings={})


@pytest.fixture
def http_server_client(jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[Client]:
    async def made() -> Client:
        return Client()

    client = jp_asyncio_loop.run_until_complete(made())
    yield client
    client.close()


@pytest.fixture(autouse=True)
def jp_server_cleanup(jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """End all kernels: each test expects a server without any."""
    yield
    for kernel in ask("GET", "/api/kernels"):
        ask("DELETE", f"/api/kernels/{kernel['id']}")
