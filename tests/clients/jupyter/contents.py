"""Makes jupyter_server's tests of its contents API use one session's files: they are the root that the tests expect.

`test_jupyter_suites.py` copies it beside those tests. The gateway's own root has a directory for each session; so the
client puts the session's name before each path that is sent, and removes it from each answer.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.services.conftest import Client, ask  # type: ignore[import-untyped]  # where `served.py` is by then
from tornado.httpclient import HTTPClientError, HTTPResponse

CONTENTS = "/api/contents"
SESSION = f"suite{secrets.token_hex(8)}"


class ClientOfFiles(Client):  # type: ignore[misc]  # as above
    """Fetches paths of one session."""

    async def fetch(self, path: str, **options: Any) -> HTTPResponse:
        path = path.replace(CONTENTS, f"{CONTENTS}/{SESSION}", 1)
        if options.get("body"):
            body = json.loads(options["body"])
            body |= {name: f"{SESSION}/{body[name]}" for name in ("path", "copy_from") if name in body}
            options["body"] = json.dumps(body)
        try:
            return _without_session(await super().fetch(path, **options))
        except HTTPClientError as error:
            if error.response is not None:
                _without_session(error.response)
            raise


def _without_session(response: HTTPResponse) -> HTTPResponse:
    response._body = response.body.replace(f"{SESSION}/".encode(), b"").replace(SESSION.encode(), b"")
    if "Location" in response.headers:
        response.headers["Location"] = response.headers["Location"].replace(f"{SESSION}/", "")
    return response


@pytest.fixture(scope="session")
def workspace() -> Iterator[Path]:
    """The directory of the session's files, which is on this machine: its kernel is a plain process."""
    ran = ask("POST", f"/v1/sessions/{SESSION}/execute", {"code": "import os; print(os.getcwd(), end='')"})
    yield Path(ran["outputs"][0]["text"])
    ask("DELETE", f"/v1/sessions/{SESSION}")


@pytest.fixture
def jp_serverapp(workspace: Path) -> SimpleNamespace:
    return SimpleNamespace(root_dir=str(workspace), contents_manager=SimpleNamespace())


@pytest.fixture
def http_server_client(jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[Client]:
    async def made() -> Client:
        return ClientOfFiles()

    client = jp_asyncio_loop.run_until_complete(made())
    yield client
    client.close()


@pytest.fixture(autouse=True)
def jp_server_cleanup(workspace: Path, jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Delete all files: each test expects none."""
    yield
    for entry in workspace.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
