"""The two eras of MCP on one endpoint, and what a request of the modern era must say in its headers.

A modern client (revision 2026-07-28) says everything with each request. A legacy client negotiates the version once.
Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from kernel_gateway.dialects.mcp.rpc import HEADER_MISMATCH, INVALID_PARAMS, VERSION_NOT_SERVED, Json, Message, RpcError

MODERN = "2026-07-28"
#: newest first
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26")
#: version of a client whose requests name none
UNNAMED = LEGACY[-1]

VERSION_HEADER = "MCP-Protocol-Version"
_META = "io.modelcontextprotocol/"
#: methods whose name or address is repeated in the header `Mcp-Name`, and the parameter that has it
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_BASE64 = ("=?base64?", "?=")


def is_modern(headers: Mapping[str, str], value: object) -> bool:
    """Return whether a request is one of the modern era: its header says so, or only its `_meta`."""
    version = headers.get(VERSION_HEADER)
    if version is not None:
        return version not in LEGACY
    match value:
        case {"params": {"_meta": {"io.modelcontextprotocol/protocolVersion": _}}}:
            return True
    return False


def capabilities_of(message: Message) -> Json:
    """Return what the client of a modern request can do."""
    told = message.meta.get(f"{_META}clientCapabilities")
    return told if isinstance(told, dict) else {}


def check_modern(headers: Mapping[str, str], message: Message) -> None:
    """Check the headers and the `_meta` of a modern request.

    Raises:
        RpcError: when a field is missing, a header differs from the body, or the version is not served.
    """
    version = message.meta.get(f"{_META}protocolVersion")
    if message.id is not None:  # notifications need no `_meta`
        if not isinstance(version, str):
            raise RpcError(INVALID_PARAMS, f"params._meta needs {_META}protocolVersion, a string")
        if not isinstance(message.meta.get(f"{_META}clientCapabilities"), dict):
            raise RpcError(INVALID_PARAMS, f"params._meta needs {_META}clientCapabilities, an object")
        _same(headers, VERSION_HEADER, version)
    if (version or headers.get(VERSION_HEADER)) != MODERN:
        asked = version or headers.get(VERSION_HEADER)
        told = {"supported": [MODERN], "requested": asked}
        raise RpcError(VERSION_NOT_SERVED, "this version of the protocol is not served", told)
    if message.id is not None:
        _same(headers, "Mcp-Method", message.method)
    if name := _NAMED.get(message.method):
        _same(headers, "Mcp-Name", message.params.get(name))


def check_mirrored(headers: Mapping[str, str], schema: Json, arguments: Json) -> None:
    """Check the headers that repeat arguments of a tool, which `x-mcp-header` in its schema names.

    Raises:
        RpcError: when an argument and its header differ.
    """
    for name, described in schema["properties"].items():
        if header := described.get("x-mcp-header"):
            _same(headers, f"Mcp-Param-{header}", arguments.get(name))


def _same(headers: Mapping[str, str], header: str, value: Any) -> None:
    told = headers.get(header)
    if told is not None:
        told = _decoded(header, told)
    if told != value:
        what = "is missing" if told is None else "differs from the body"
        raise RpcError(HEADER_MISMATCH, f"the header {header} {what}")


def _decoded(header: str, value: str) -> str:
    first, last = _BASE64
    if not (value.startswith(first) and value.endswith(last)):
        return value
    encoded = value[len(first) : -len(last)]
    try:
        decoded = base64.b64decode(encoded, validate=True)
        if base64.b64encode(decoded).decode() == encoded:
            return decoded.decode()
    except (binascii.Error, ValueError):
        pass
    raise RpcError(HEADER_MISMATCH, f"the header {header} holds no valid base64")
