"""The Model Context Protocol: agents run code in sessions by five tools, without code of their own.

`/mcp` speaks both eras of the protocol over HTTP; `/sse` is the old transport, for vLLM's tool server.
Source: the MCP specification, revisions 2025-03-26 to 2026-07-28.
"""

from __future__ import annotations

from kernel_gateway.dialects.mcp.handler import McpHandler
from kernel_gateway.dialects.mcp.server import Server
from kernel_gateway.dialects.mcp.sse import MessagesHandler, StreamHandler, Streams
from kernel_gateway.dialects.mcp.toolset import GatewayTools
from kernel_gateway.gateway import Dialect, Gateway, Route


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of both transports."""
    streams = {"gateway": gateway, "streams": Streams()}
    return [
        ("/mcp", McpHandler, {"gateway": gateway, "server": Server(GatewayTools(gateway))}),
        ("/sse", StreamHandler, streams),
        ("/messages/?", MessagesHandler, streams),
    ]


DIALECT = Dialect("mcp", routes)
