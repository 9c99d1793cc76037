"""A gateway whose `/mcp` offers the tools that the protocol's conformance suite calls, in place of its own.

The transport is the gateway's, unchanged, except that it needs no key: the suite cannot send one.
"""

from __future__ import annotations

import asyncio
import sys

from kernel_gateway.cli import main
from kernel_gateway.dialects import mcp
from kernel_gateway.dialects.mcp import handler
from kernel_gateway.dialects.mcp.calls import Call
from kernel_gateway.dialects.mcp.handler import McpHandler
from kernel_gateway.dialects.mcp.request_state import Question
from kernel_gateway.dialects.mcp.rpc import Json, RpcError
from kernel_gateway.gateway import Gateway
from kernel_gateway.identity.auth import Caller

#: one red pixel
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
TEXT: Json = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE: Json = {"type": "image", "data": PNG, "mimeType": "image/png"}
RESOURCE: Json = {
    "type": "resource",
    "resource": {
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "This is an embedded resource content.",
    },
}
MIXED = {
    "type": "resource",
    "resource": {"uri": "test://mixed-content-resource", "mimeType": "application/json", "text": '{"test":"data"}'},
}

RESULTS: dict[str, Json] = {
    "test_simple_text": {"content": [TEXT]},
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]},
    "test_embedded_resource": {"content": [RESOURCE]},
    "test_multiple_content_types": {
        "content": [{"type": "text", "text": "Multiple content types test:"}, IMAGE, MIXED]
    },
    "test_error_handling": {
        "content": [{"type": "text", "text": "This tool intentionally returns an error for testing"}],
        "isError": True,
    },
}
ASKING = (
    "test_elicitation",
    "test_input_required_result_elicitation",
    "test_input_required_result_request_state",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
    "test_streaming_elicitation",
)
OTHERS = ("test_tool_with_progress", "test_missing_capability", "test_logging_tool")
#: seconds of a tool, and between two reports of its progress
SLOW, PROGRESS = 1.0, 0.2


class FixtureTools:
    """The tools of the suite that need nothing but the transport."""

    name = "fixtures"
    instructions = ""

    def __init__(self, _gateway: Gateway) -> None:
        self._asked = 0

    def listed(self) -> list[Json]:
        schema = {"type": "object", "properties": {"message": {"type": "string"}}}
        header = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
        tools = [{"name": name, "description": name, "inputSchema": schema} for name in (*RESULTS, *ASKING, *OTHERS)]
        return [*tools, {"name": "test_custom_header", "description": "mirrors", "inputSchema": header}]

    async def call(self, call: Call) -> Json:
        if call.name in ASKING:
            self._asked += 1
            given = call.answered[1] if call.answered and call.answered[0].number else None
            if given is None and not call.can_ask:
                return {"content": [TEXT]}
            if given is None:
                given = await call.ask("What is your name?", Question("fixture", "0" * 32, self._asked))
            return {"content": [{"type": "text", "text": f"Hello, {given}!"}]}
        if call.name == "test_missing_capability":
            raise RpcError(-32021, "the client lacks sampling", {"requiredCapabilities": {"sampling": {}}})
        if call.name == "test_tool_with_progress":
            await asyncio.sleep(SLOW)
        return RESULTS.get(call.name, {"content": [TEXT]})


handler.PROGRESS = PROGRESS  # the suite does not wait for five seconds
mcp.GatewayTools = FixtureTools  # type: ignore[assignment,attr-defined]
McpHandler.authenticate = lambda _handler: Caller("alice")  # type: ignore[assignment,method-assign]

if __name__ == "__main__":
    sys.exit(main())
