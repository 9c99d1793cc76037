"""A real MCP server, a hostile one, and gateways whose operator has configured them."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.conftest import ISOLATIONS
from tests.kernel_gateway.tools.hostile_server import hostile

TOKEN = f"operators-secret-{secrets.token_hex(8)}"
SERVER = Path(__file__).parent / "operator_server.py"


@pytest.fixture(scope="session")
def tea_url() -> Iterator[str]:
    """The address of a real MCP server."""
    with subprocess.Popen([sys.executable, str(SERVER), TOKEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.terminate()


@pytest.fixture(scope="session")
def hostile_url() -> Iterator[str]:
    """The address of a server that does harm, each path in another way."""
    with hostile() as url:
        yield url


def servers_of(tea: str, hostile: str, secret: Path) -> dict[str, Any]:
    """Return the setting `tool_servers` of these tests."""
    usual = {"url": tea, "tenants": ["alice"]}
    bad = {"tenants": ["*"], "credential": f"Bearer {TOKEN}"}
    return {
        "tea": usual | {"credential": f"Bearer {TOKEN}"},
        "filed": usual | {"credential_file": str(secret)},
        "stranger": usual | {"credential": "Bearer not-the-token"},
        "down": {"url": "http://127.0.0.1:9/mcp", "tenants": ["*"]},
        **{
            name: bad | {"url": f"{hostile}/{name}", "timeout": 2 if "in 2 s" in told else 30}
            for name, told in BAD.items()
        },
    }


#: what each path of the hostile server does, and what the cell is told
BAD = {
    "hangs": "it has not answered in 2 s",
    "drips": "it has not answered in 2 s",
    "floods": "it sent more than",
    "floods_events": "it sent more than",
    "packs": "it packs its answers",
    "redirects": "not followed",
    "pages": "more than 1024 tools, or more than 32 pages",
    "no_json": "cannot be used",
    "bad_result": "cannot be used",
    "other_ids": "it has not answered in 2 s",
    "asks": "cannot be used",
    "repeats": "[credential]",
}


@pytest.fixture(scope="session", params=ISOLATIONS)
def served(
    request: pytest.FixtureRequest, tea_url: str, hostile_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with these servers."""
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text(f"Bearer {TOKEN}\n")
    settings = json.dumps(servers_of(tea_url, hostile_url, secret))
    with gateways.gateway(request.param, tool_servers=settings) as gateway:
        yield gateway
