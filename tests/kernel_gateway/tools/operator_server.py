"""A real MCP server, as an operator runs it: the official library's, with a token. Prints its port.

Usage: operator_server.py TOKEN
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("tea", log_level="ERROR")
#: the calls of `slow` that run
running: list[float] = []


@server.tool()
def search(query: str, limit: int = 3) -> dict[str, Any]:
    """Find rows."""
    return {"rows": [f"{query} {n}" for n in range(limit)]}


@server.tool(structured_output=False)
def greet(name: str) -> str:
    """Say hello."""
    return f"hello {name}"


@server.tool(name="get-size", structured_output=False)
def size_of(text: str) -> str:
    """Return a length."""
    return str(len(text))


@server.tool()
def broken() -> str:
    """Fail."""
    raise ToolError("no tea today")


@server.tool()
async def slow(seconds: float) -> dict[str, Any]:
    """Take long, and return how many of these calls have run at a time."""
    running.append(seconds)
    most = running.count(seconds)
    await asyncio.sleep(seconds)
    running.remove(seconds)
    return {"most": most}


@server.tool(structured_output=False)
def long(characters: int) -> str:
    """Return a long text."""
    return "x" * characters


def with_token(app: ASGIApp, token: str) -> ASGIApp:
    """Answer only who knows the token, and repeat to others what they sent."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {token}".encode():
            await PlainTextResponse("who are you?", 401)(scope, receive, send)
            return
        await app(scope, receive, send)

    return asked


def main() -> None:
    # Of other protocol numbers, asyncio leaves Nagle's algorithm on: each answer would come 40 ms late.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = with_token(server.streamable_http_app(), sys.argv[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
