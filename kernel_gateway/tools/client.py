"""Speaks MCP with one server of the operator, through the official library.

Each call is a conversation of its own: nothing that a server remembers of one tenant reaches another one, and a server
can spoil one call only. The connections are kept for later calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    HEADER_MISMATCH,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    DiscoverResult,
    PaginatedRequestParams,
    TextContent,
)
from mcp_types import Tool as Described
from pydantic import ValidationError

from kernel_gateway.setting_types import ToolServerForm
from kernel_gateway.tools.bounded import BYTES_MAX, Bounded
from sessions.model.values import Tool
from sessions.tools.servers import ToolFailed

#: maximum pages of a server's list of tools, tools in it, and characters of a tool's name and of its description
PAGES_MAX, TOOLS_MAX, NAME_MAX, DESCRIPTION_MAX = 32, 1024, 128, 10_000
#: maximum names of a tool's parameters
PARAMETERS_MAX = 128
#: characters of what a server says about an error
SAID_MAX = 2000
#: what the library raises if a server does not answer as it should
_LIES = (MCPError, ValidationError, httpx2.HTTPError, httpx2.StreamError, RuntimeError, ValueError)


class ServerClient:
    """The client of one server."""

    def __init__(self, name: str, form: ToolServerForm) -> None:
        """Begin without connections.

        Args:
            name: name of the server.
            form: its address, its credential and its deadline.
        """
        self._name = name
        self._form = form
        self._transport = httpx2.AsyncHTTPTransport(
            trust_env=False, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8)
        )
        #: how the server was spoken to: the revision of the protocol, and what it said about itself. None: not yet
        self._era: tuple[str, DiscoverResult | None] | None = None

    async def tools(self) -> list[Tool]:
        """Return the server's tools.

        Raises:
            ToolFailed: when the server does not list them as it should.
        """
        async with self._conversation() as client:
            found = await _listed(client)
        return [_tool(each) for each in found if len(each.name) <= NAME_MAX]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return a tool's answer: its structured content, or else its texts as one text, or else its parts.

        Raises:
            ToolFailed: when the tool has failed, or the server does not answer as it should.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        async with self._conversation() as client:
            # Not the library's `call_tool`: it would check the answer with a schema and patterns of the server's own.
            try:
                result = await client.session.send_request(request, CallToolResult)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
                await _listed(client)  # the library then knows which arguments the server wants as headers, too
                result = await client.session.send_request(request, CallToolResult)
        texts = [part.text for part in result.content if isinstance(part, TextContent)]
        if result.is_error:
            raise ToolFailed("\n".join(texts)[:SAID_MAX] or "the tool has failed, and has not said why")
        if result.structured_content is not None:
            return result.structured_content
        if len(texts) == len(result.content):
            return "\n".join(texts)
        return [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content]

    @asynccontextmanager
    async def _conversation(self) -> AsyncIterator[Client]:
        """Speak with the server, until the deadline at the latest.

        Raises:
            ToolFailed: when the server does not answer as it should.
        """
        bounded = Bounded(self._transport)
        try:
            with anyio.fail_after(self._form.timeout):
                async with self._http(bounded) as http, self._client(http) as client:
                    yield client
                    discovered = client.session.discover_result
                    self._era = ("legacy", None) if discovered is None else (client.protocol_version, discovered)
        except TimeoutError:
            raise self._failed(f"it has not answered in {self._form.timeout:g} s") from None
        except _LIES as error:
            self._era = None
            raise self._failed(bounded.problem or _said(error)) from None
        except ExceptionGroup as group:
            self._era = None
            lies, defects = group.split((ToolFailed, *_LIES))
            if lies is None or defects is not None:
                raise
            first = _first(lies)
            raise first if isinstance(first, ToolFailed) else self._failed(bounded.problem or _said(first)) from None

    def _failed(self, problem: str) -> ToolFailed:
        return ToolFailed(f"the server {self._name} cannot be used: {problem}")

    def _http(self, bounded: Bounded) -> httpx2.AsyncClient:
        try:
            headers = self._form.headers() | {"Accept-Encoding": "identity"}
        except (OSError, UnicodeError, ValueError):
            raise self._failed("the gateway cannot read its credential; tell the operator") from None
        # Until the deadline of the whole conversation: a tool may take long to answer.
        return httpx2.AsyncClient(transport=bounded, headers=headers, timeout=None, max_redirects=4, trust_env=False)

    def _client(self, http: httpx2.AsyncClient) -> Client:
        mode, discovered = self._era or ("auto", None)
        streams = streamable_http_client(self._form.url, http_client=http, max_sse_event_size=BYTES_MAX)
        return Client(streams, mode=mode, prior_discover=discovered, cache=None)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


async def _listed(client: Client) -> list[Described]:
    """Return all pages of a server's list of tools.

    Raises:
        ToolFailed: when the list has no end.
    """
    found: list[Described] = []
    cursor = None
    for _ in range(PAGES_MAX):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        found += page.tools
        cursor = page.next_cursor
        if cursor is None and len(found) <= TOOLS_MAX:
            return found
        if len(found) > TOOLS_MAX:
            break
    raise ToolFailed(f"the server cannot be used: it lists more than {TOOLS_MAX} tools, or more than {PAGES_MAX} pages")


def _tool(described: Described) -> Tool:
    properties = described.input_schema.get("properties")
    names = [name[:NAME_MAX] for name in properties] if isinstance(properties, dict) else []
    return Tool(described.name, (described.description or "")[:DESCRIPTION_MAX], tuple(names[:PARAMETERS_MAX]))


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its text repeats the answer
        return "its answer is not as MCP requires"
    return str(error)[:SAID_MAX] or type(error).__name__
