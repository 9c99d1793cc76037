"""The methods of MCP that answer at once, in both eras, and what all connections of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version

from kernel_gateway.dialects.mcp.calls import Toolset
from kernel_gateway.dialects.mcp.eras import LEGACY, MODERN
from kernel_gateway.dialects.mcp.rpc import INVALID_PARAMS, NO_METHOD, Json, Message, RpcError

#: version of the gateway; Python reads a file each time that it is asked for it
_VERSION = version("sandboxed-kernel-gateway")
#: milliseconds for which a client may keep the list of tools
TTL_MS = 300_000


@dataclass
class Server:
    """Tools, and the requests and calls that are open on any connection."""

    tools: Toolset
    #: requests to legacy clients, by id: the tenant, and who waits for the result
    asked: dict[str, tuple[str, asyncio.Future[Json]]] = field(default_factory=dict)
    #: what cancels the open calls of legacy clients, by tenant, session of the protocol, and id
    open: dict[tuple[str, str, str | int], list[Callable[[], None]]] = field(default_factory=dict)

    @property
    def info(self) -> Json:
        """Name and version of the server."""
        return {"name": self.tools.name, "version": _VERSION}

    def complete(self, result: Json) -> Json:
        """Return a result as modern clients want it."""
        return {"resultType": "complete"} | result | {"_meta": {"io.modelcontextprotocol/serverInfo": self.info}}

    def tool_of(self, message: Message) -> tuple[Json, Json]:
        """Return the tool that a `tools/call` names, and the arguments.

        Raises:
            RpcError: when there is no such tool, or the arguments are no object.
        """
        arguments = message.params.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "arguments must be an object")
        for tool in self.tools.listed():
            if tool["name"] == message.params.get("name"):
                return tool, arguments
        raise RpcError(INVALID_PARAMS, f"there is no tool {str(message.params.get('name'))[:64]!r}")

    def legacy(self, message: Message) -> Json:
        """Answer a method of the legacy era that needs no call of a tool.

        Raises:
            RpcError: when there is no such method.
        """
        match message.method:
            case "initialize":
                asked = message.params.get("protocolVersion")
                return {
                    "protocolVersion": asked if asked in LEGACY else LEGACY[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": self.info,
                    "instructions": self.tools.instructions,
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": self.tools.listed()}
        raise RpcError(NO_METHOD, f"there is no method {message.method[:64]!r}", status=HTTPStatus.NOT_FOUND)

    def modern(self, message: Message) -> Json:
        """Answer a method of the modern era that needs no call of a tool.

        Raises:
            RpcError: when there is no such method.
        """
        kept: Json = {"ttlMs": TTL_MS, "cacheScope": "public"}
        match message.method:
            case "server/discover":
                told = {
                    "supportedVersions": [MODERN],
                    "capabilities": {"tools": {}},
                    "instructions": self.tools.instructions,
                }
                return self.complete(told | kept)
            case "tools/list":
                return self.complete({"tools": self.tools.listed()} | kept)
        raise RpcError(NO_METHOD, f"there is no method {message.method[:64]!r}", status=HTTPStatus.NOT_FOUND)
