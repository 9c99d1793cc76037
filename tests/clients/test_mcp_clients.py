"""Clients of MCP as they are installed, in both eras: the official Python client, fastmcp, both TypeScript SDKs, the
inspector's command line, and the protocol's own conformance suite.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import gateways
from tests.gateways import KEYS, Gateway

HERE = Path(__file__).parent / "mcp"
#: the clients' packages, and the Node.js that they run with
PACKAGES = Path(__file__).parents[2] / ".venv-mcp"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway that answers after two seconds that a cell still runs."""
    assert (PACKAGES / "node_modules").exists(), "run `make .venv-mcp/node_modules`"
    with gateways.gateway("process", mcp_answer_after="2") as serving:
        yield serving


def ran(program: str, *words: str, code: Path | None = None) -> str:
    """Run a program of the packages, and return its output."""
    done = subprocess.run(
        [PACKAGES / "bin" / program, *words],
        input=None if code is None else code.read_text(),
        cwd=PACKAGES,  # where a program that comes from the standard input finds its packages
        env={"PATH": f"{PACKAGES / 'bin'}:/usr/bin:/bin", "HOME": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
def test_the_official_python_client_uses_all_tools(gateway: Gateway, mode: str) -> None:
    ran("python", str(HERE / "drive.py"), mode, f"{gateway.url}/mcp", KEYS["alice"])
    assert gateway.errors() == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_it_uses_them_over_standard_input_and_output(gateway: Gateway, mode: str) -> None:
    command = [sys.executable, "-m", "kernel_gateway", "mcp", "--url", gateway.url, "--key", KEYS["alice"]]
    ran("python", str(HERE / "drive.py"), mode, *command)
    assert gateway.errors() == []


def test_fastmcp_uses_the_tools(gateway: Gateway) -> None:
    ran("python", str(HERE / "drive_fastmcp.py"), f"{gateway.url}/mcp", KEYS["alice"])
    assert gateway.errors() == []


@pytest.mark.parametrize("version", ["1", "auto", "legacy"])
def test_the_typescript_sdks_use_the_tools(gateway: Gateway, version: str) -> None:
    words = ["--input-type=module", "-", f"{gateway.url}/mcp", KEYS["alice"], version]
    ran("node", *words, code=HERE / "drive.mjs")
    assert gateway.errors() == []


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_the_inspector_calls_a_tool(era: str) -> None:
    inspector = str(PACKAGES / "node_modules/.bin/mcp-inspector")
    with gateways.gateway("process") as gateway:  # one that waits for the result: a call of the inspector is one call
        words = ["--cli", f"{gateway.url}/mcp", "--transport", "http"]
        words += ["--header", f"Authorization: Bearer {KEYS['alice']}"]
        words += ["--method", "tools/call", "--tool-name", "run_code", "--tool-args-json", '{"code": "6 * 7"}']
        told = ran("node", inspector, *words, "--protocol-era", era, "--format", "json")
    assert '"42"' in told


@pytest.mark.timeout(300)
def test_a_cell_of_three_minutes_behind_a_client_that_waits_one() -> None:
    with gateways.gateway("process") as gateway:
        words = ["--input-type=module", "-", f"{gateway.url}/mcp", KEYS["alice"]]
        told = json.loads(ran("node", *words, code=HERE / "drive_long.mjs"))
        assert told["waits"] >= 3
        assert told["last"]["result"] == "180"


_COMPLETION = "completion is not served: no argument of a tool has a list of values to choose from"
_LOGS = "logs are not served: what a cell prints is in its result"
_SUBSCRIPTIONS = "subscriptions are not served: nothing that is listed changes"
_PROMPTS = "prompts are not served; the fixture's cannot ask, because only calls of tools do"
_TASKS = "the extension of tasks is not served; `wait` takes its place"
#: scenarios that fail, and why. All others pass, in both eras
EXPECTED = {
    "completion-complete": _COMPLETION,
    "logging-set-level": _LOGS,
    "tools-call-with-logging": _LOGS,
    "resources-subscribe": _SUBSCRIPTIONS,
    "resources-unsubscribe": _SUBSCRIPTIONS,
    "input-required-result-non-tool-request": _PROMPTS,
    "tasks-lifecycle": _TASKS,
    "tasks-capability-negotiation": _TASKS,
    "tasks-wire-fields": _TASKS,
    "tasks-request-state-removal": _TASKS,
    "tasks-mrtr-input": _TASKS,
    "tasks-request-headers": _TASKS,
    "tasks-dispatch-and-envelope": _TASKS,
    "tasks-required-task-error": _TASKS,
    "tasks-mrtr-composition": _TASKS,
}
#: revision of the protocol, and scenarios of it that pass, of which there are more
PASSING = {
    "2026-07-28": {"server-stateless", "tools-list", "dns-rebinding-protection", "http-header-validation"},
    "2025-11-25": {"server-initialize", "ping", "tools-list", "tools-call-elicitation", "dns-rebinding-protection"},
}


@pytest.mark.parametrize("revision", PASSING)
def test_the_conformance_suite_passes_but_for_what_is_not_served(revision: str) -> None:
    command = (sys.executable, "-m", "tests.clients.mcp.fixture_gateway")
    with gateways.gateway("process", command=command) as gateway:
        suite = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        done = subprocess.run(
            [PACKAGES / "bin/node", suite, "server", "--url", f"{gateway.url}/mcp", "--requirements", revision],
            cwd=PACKAGES,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    outcomes = {name: sign for sign, name in re.findall(r"^([✓✗]) ([\w-]+): ", done.stdout, re.MULTILINE)}
    failed = {name for name, sign in outcomes.items() if sign == "✗"}
    assert failed == EXPECTED.keys() & outcomes.keys(), done.stdout[-6000:]
    assert outcomes.keys() - failed > PASSING[revision]
