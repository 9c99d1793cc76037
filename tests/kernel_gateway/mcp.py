"""A small client of `/mcp` in both eras, which checks what every answer must have."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import requests
from jsonschema_rs import Draft202012Validator

from tests.gateways import Gateway

MODERN, LEGACY = "2026-07-28", "2025-11-25"
ACCEPT = {"Accept": "application/json, text/event-stream"}
_numbers = itertools.count(1)
_schemas: dict[str, Any] = {}


class Wire(NamedTuple):
    """Headers and body of a message."""

    headers: dict[str, str]
    body: dict[str, Any]


def modern(method: str, *, asks: bool = False, **params: Any) -> Wire:
    """Return a request of the modern era."""
    capabilities: dict[str, Any] = {"elicitation": {}} if asks else {}
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    } | params.pop("meta", {})
    headers = ACCEPT | {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    if isinstance(session := params.get("arguments", {}).get("session"), str):
        headers["Mcp-Param-Session"] = session
    return Wire(headers, _request(method, params | {"_meta": meta}))


def legacy(method: str, *, asks: bool = False, **params: Any) -> Wire:
    """Return a request of the legacy era."""
    meta = {"_meta": params.pop("meta")} if "meta" in params else {}
    headers = ACCEPT | {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": "asks-1" if asks else "1"}
    return Wire(headers, _request(method, params | meta))


ERAS = {"modern": modern, "legacy": legacy}


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": next(_numbers), "method": method, "params": params}


def send(gateway: Gateway, wire: Wire, *, tenant: str | None = "alice", **options: Any) -> requests.Response:
    """Send a message."""
    return gateway.call("POST", "/mcp", tenant=tenant, headers=dict(wire.headers), json=wire.body, **options)


@contextmanager
def streamed(gateway: Gateway, wire: Wire) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the messages of a stream as they arrive."""
    with send(gateway, wire, stream=True) as response:
        assert response.headers["Content-Type"] == "text/event-stream", response.text
        assert response.headers["X-Accel-Buffering"] == "no"
        yield (json.loads(line.removeprefix(b"data: ")) for line in response.iter_lines() if line.startswith(b"data: "))


def result_of(gateway: Gateway, wire: Wire, *, tenant: str = "alice") -> dict[str, Any]:
    """Send a request, and return its result."""
    response = send(gateway, wire, tenant=tenant)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["id"] == wire.body["id"]
    result: dict[str, Any] = answer["result"]
    if "MCP-Protocol-Version" in wire.headers and wire.headers["MCP-Protocol-Version"] == MODERN:
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "sandboxed-kernel-gateway"
        assert result["resultType"] in {"complete", "input_required"}
    else:
        assert not {"resultType", "ttlMs", "cacheScope"} & result.keys()
    return result


def error_of(response: requests.Response) -> tuple[int, int]:
    """Return the HTTP status and the code of an error."""
    assert b"Traceback" not in response.content
    return response.status_code, response.json()["error"]["code"]


def call(
    gateway: Gateway, tool: str, *, era: str = "modern", tenant: str = "alice", asks: bool = False, **arguments: Any
) -> dict[str, Any]:
    """Call a tool, check its structured content against the schema, and return the result."""
    result = result_of(gateway, ERAS[era]("tools/call", asks=asks, name=tool, arguments=arguments), tenant=tenant)
    check(gateway, tool, result)
    return result


def check(gateway: Gateway, tool: str, result: dict[str, Any]) -> None:
    """Check that a result fits the tool's schema."""
    if not _schemas:
        _schemas.update({each["name"]: each for each in result_of(gateway, modern("tools/list"))["tools"]})
    if result.get("resultType") != "input_required":
        Draft202012Validator(_schemas[tool]["outputSchema"]).validate(result["structuredContent"])
        assert result["content"][0]["type"] == "text"


def texts(result: dict[str, Any]) -> list[str]:
    """Return the texts of a result."""
    return [block["text"] for block in result["content"] if block["type"] == "text"]
