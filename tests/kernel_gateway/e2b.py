"""A client of the E2B dialect that sends any request, for what the real SDK does not send, and fixtures of its tests.

Test modules import everything from here: their `gateway` has no sandbox, and their `box` is E2B's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.gateways import KEYS, Gateway

#: ports of a sandbox's services: files and commands, and the code interpreter
ENVD, INTERPRETER = 49983, 49999
#: headers by which the gateway knows a client of E2B
SDK = {"User-Agent": "e2b-python-sdk/2.63.0"}
NOWHERE = "a" * 20
#: header of a call whose answer, or request, is a stream of messages
STREAM = {"Content-Type": "application/connect+json"}


def control(gateway: Gateway, method: str, path: str, tenant: str = "alice", **options: Any) -> requests.Response:
    """Send a request to the control plane."""
    headers = {"X-API-Key": KEYS[tenant], **SDK, **options.pop("headers", {})}
    return gateway.call(method, path, tenant=None, headers=headers, **options)


@dataclass(frozen=True)
class Box:
    """A sandbox of the tenant alice, or what a client makes of one."""

    gateway: Gateway
    id: str
    token: str
    traffic: str = ""

    def call(self, method: str, path: str, port: int = INTERPRETER, **options: Any) -> requests.Response:
        """Send a request to a service of the sandbox."""
        named = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port), "X-Access-Token": self.token}
        if self.traffic:
            named["E2B-Traffic-Access-Token"] = self.traffic
        return self.gateway.call(method, path, tenant=None, headers=named | options.pop("headers", {}), **options)

    def run(self, code: str, **body: Any) -> list[dict[str, Any]]:
        """Run code and return its events; check what holds for all answers."""
        response = self.call("POST", "/execute", json={"code": code, **body})
        assert response.status_code == 200, response.text
        assert response.content.isascii()
        events = [json.loads(line, parse_constant=_refuse) for line in response.content.splitlines()]
        assert events[-1] == {"type": "end_of_execution"}
        return [event for event in events[:-1] if event["type"] != "keepalive"]

    def text(self, code: str, **body: Any) -> str:
        """Run code and return the text of its main result."""
        (result,) = (event for event in self.run(code, **body) if event.get("is_main_result"))
        return str(result["text"])


def envelope(message: dict[str, Any] | bytes, flags: int = 0) -> bytes:
    """Return a message of a stream."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


def messages(pieces: Iterator[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield flags and content of each message; check that the stream is whole."""
    received = b""
    for piece in pieces:
        received += piece
        while len(received) >= 5:
            flags, size = struct.unpack(">BI", received[:5])
            if len(received) < 5 + size:
                break
            yield flags, json.loads(received[5 : 5 + size])
            received = received[5 + size :]
    assert received == b""


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@contextmanager
def boxed(gateway: Gateway, **body: Any) -> Iterator[Box]:
    """Create a sandbox, and kill it afterwards."""
    made = control(gateway, "POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 300, **body})
    assert made.status_code == 201, made.text
    told = made.json()
    try:
        yield Box(gateway, told["sandboxID"], told["envdAccessToken"])
    finally:
        control(gateway, "DELETE", f"/sandboxes/{told['sandboxID']}")


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the wire is the same."""
    return started("process")


@pytest.fixture
def box(gateway: Gateway) -> Iterator[Box]:
    """A sandbox that no other test uses."""
    with boxed(gateway) as box:
        yield box
