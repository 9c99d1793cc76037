"""`kernel-gateway mcp`: MCP on standard input and output, to a gateway and to one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests

from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import process_only
from tests.kernel_gateway.mcp import ERAS, legacy, modern

PAGE = Path(__file__).parents[3] / "docs/clients/mcp.md"
COMMAND = [sys.executable, "-m", "kernel_gateway", "mcp"]


class Program:
    """The command, and its lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def write(self, message: dict[str, Any] | str) -> None:
        """Write a line."""
        assert self.process.stdin
        self.process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Read a line."""
        assert self.process.stdout
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write a request, and return its result."""
        self.write(message)
        told = self.read()
        assert told["id"] == message["id"]
        result: dict[str, Any] = told["result"]
        return result


@contextmanager
def program(*flags: str) -> Iterator[Program]:
    """Run the command; its input ends afterwards, and so does the command."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *flags], text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Program(process)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


def to(gateway: Gateway) -> list[str]:
    """Return the flags for a gateway."""
    return ["--url", gateway.url, "--key", KEYS["alice"]]


@process_only
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_lines_reach_a_gateway_and_its_answers_come_back(gateway: Gateway, session: str, era: str) -> None:
    with program(*to(gateway)) as mcp:
        if era == "legacy":
            told = mcp.ask(legacy("initialize", protocolVersion="2025-06-18", capabilities={}).body)
            assert told["protocolVersion"] == "2025-06-18"
            mcp.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert len(mcp.ask(ERAS[era]("tools/list").body)["tools"]) == 6
        arguments = {"session": session, "code": "6 * 7"}
        told = mcp.ask(ERAS[era]("tools/call", name="run_code", arguments=arguments).body)
        assert told["structuredContent"]["result"] == "42"
        mcp.write("{")
        assert mcp.read()["error"]["code"] == -32700


@process_only
def test_the_configurations_of_the_page_work(gateway: Gateway) -> None:
    page = PAGE.read_text().replace("http://127.0.0.1:8888", gateway.url).replace("KEY", KEYS["alice"])
    url, command = (json.loads(line)["mcpServers"]["code"] for line in page.split("\n") if line.startswith('{"mcpS'))
    listed = modern("tools/list")
    told = requests.post(url["url"], json=listed.body, headers=listed.headers | url["headers"], timeout=60)
    assert len(told.json()["result"]["tools"]) == 6
    assert command["command"] == "kernel-gateway"
    assert command["args"][0] == "mcp"
    with program(*command["args"][1:]) as mcp:
        assert len(mcp.ask(listed.body)["tools"]) == 6


@process_only
def test_a_legacy_client_is_asked_on_its_lines(gateway: Gateway, session: str) -> None:
    code = "print(input('Name? '), 'a\\u2028b')"  # some programs take this character for the end of a line
    with program(*to(gateway)) as mcp:
        mcp.ask(legacy("initialize", protocolVersion="2025-11-25", capabilities={"elicitation": {}}).body)
        call = legacy("tools/call", name="run_code", arguments={"session": session, "code": code})
        mcp.write(call.body)
        asked = mcp.read()
        assert asked["params"]["message"] == "Name?"
        mcp.write({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"answer": "Ada"}}})
        assert mcp.read()["result"]["structuredContent"]["text"].endswith("Ada a\u2028b\n")


def test_it_starts_and_ends_a_gateway_of_its_own() -> None:
    with program("--isolation", "process") as mcp:
        told = mcp.ask(modern("tools/call", name="run_code", arguments={"code": "6 * 7"}).body)
        assert told["structuredContent"]["result"] == "42"
        assert mcp.process.pid in _parents()
    assert mcp.process.pid not in _parents()


def _parents() -> set[int]:
    """Return the parents of all processes that serve."""
    listed = subprocess.run(["ps", "-eo", "ppid,args"], check=True, capture_output=True, text=True).stdout
    return {int(line.split()[0]) for line in listed.splitlines() if "kernel_gateway serve" in line}


def test_a_gateway_that_does_not_answer_is_an_error() -> None:
    with program("--url", "http://127.0.0.1:9", "--key", "k") as mcp:
        mcp.write(modern("tools/list").body)
        assert "does not answer" in mcp.read()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/html", "<html>"),
        ("application/json", "[]"),
        ("text/event-stream", "data: <html>\n\n"),
        ("text/event-stream", "data: []\n\n"),
    ],
)
def test_what_is_no_answer_of_a_gateway_is_an_error(kind: str, content: str) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with program("--url", f"http://127.0.0.1:{server.server_port}", "--key", "k") as mcp:
            mcp.write(modern("tools/list").body)
            assert mcp.read()["error"]["message"].endswith("is not a gateway's")
        server.shutdown()
