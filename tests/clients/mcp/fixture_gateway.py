"""A gateway whose `/mcp` offers what the protocol's conformance suite calls, in place of its own tools.

The transport is the gateway's, unchanged, except that it needs no key: the suite cannot send one. Prompts and resources
are only here, so that the suite's scenarios try the transport with them.
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
from kernel_gateway.dialects.mcp.rpc import INVALID_PARAMS, Json, Message, RpcError
from kernel_gateway.dialects.mcp.server import TTL_MS, Server
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


def form(message: str, **properties: Json) -> Json:
    """Return the request for a form with these fields."""
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


WORD: Json = {"type": "string"}
CHOICES = ["active", "inactive", "pending"]
TITLED = [{"const": choice, "title": choice.title()} for choice in CHOICES]
NAME = form("What is your name?", name=WORD)
SAMPLE: Json = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hello?"}}], "maxTokens": 100},
}
ROOTS: Json = {"method": "roots/list", "params": {}}
#: what a tool asks of its client, round by round
ASKING: dict[str, list[dict[str, Json]]] = {
    "test_elicitation": [{"user": form("Who?", username=WORD, email=WORD)}],
    "test_sampling": [{"answer": SAMPLE}],
    "test_elicitation_sep1034_defaults": [
        {
            "user": form(
                "Who?",
                name=WORD | {"default": "John Doe"},
                age={"type": "integer", "default": 30},
                score={"type": "number", "default": 95.5},
                status=WORD | {"enum": CHOICES, "default": "active"},
                verified={"type": "boolean", "default": True},
            )
        }
    ],
    "test_elicitation_sep1330_enums": [
        {
            "user": form(
                "Which?",
                untitledSingle=WORD | {"enum": CHOICES},
                titledSingle=WORD | {"oneOf": TITLED},
                legacyEnum=WORD | {"enum": CHOICES, "enumNames": CHOICES},
                untitledMulti={"type": "array", "items": WORD | {"enum": CHOICES}},
                titledMulti={"type": "array", "items": {"anyOf": TITLED}},
            )
        }
    ],
    "test_input_required_result_elicitation": [{"user_name": NAME}],
    "test_input_required_result_sampling": [{"capital_question": SAMPLE}],
    "test_input_required_result_list_roots": [{"client_roots": ROOTS}],
    "test_input_required_result_request_state": [{"confirm": form("Please confirm", ok={"type": "boolean"})}],
    "test_input_required_result_tampered_state": [{"confirm": form("Please confirm", ok={"type": "boolean"})}],
    "test_input_required_result_multiple_inputs": [{"user_name": NAME, "greeting": SAMPLE, "client_roots": ROOTS}],
    "test_input_required_result_multi_round": [{"step1": NAME}, {"step2": form("Which color?", color=WORD)}],
    "test_input_required_result_capabilities": [{"user_name": NAME, "greeting": SAMPLE}],
    "test_streaming_elicitation": [{"user_name": NAME}],
}
#: what a client must be able to do for a request
NEEDS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
#: keywords of JSON Schema 2020-12 that a list of tools keeps. Source: the suite's scenario `json-schema-2020-12`
SCHEMA: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": WORD, "city": WORD}}},
    "properties": {"name": WORD, "address": {"$ref": "#/$defs/address"}, "contactMethod": WORD},
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
#: results of prompts by name, and contents of resources by address
PROMPTS: dict[str, list[Json]] = {
    "test_simple_prompt": [{"type": "text", "text": "This is a simple prompt for testing."}],
    "test_prompt_with_arguments": [{"type": "text", "text": "Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"}],
    "test_prompt_with_embedded_resource": [RESOURCE, {"type": "text", "text": "Please process the resource above."}],
    "test_prompt_with_image": [IMAGE, {"type": "text", "text": "Please analyze the image above."}],
}
RESOURCES: dict[str, Json] = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://template/123/data": {"mimeType": "application/json", "text": '{"id":"123","templateTest":true}'},
}
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
        schema = {"type": "object", "properties": {"message": WORD}}
        header = {"type": "object", "properties": {"region": WORD | {"x-mcp-header": "Region"}}}
        tools = [{"name": name, "description": name, "inputSchema": schema} for name in (*RESULTS, *ASKING, *OTHERS)]
        tools.append({"name": "json_schema_2020_12_tool", "description": "schema", "inputSchema": SCHEMA})
        return [*tools, {"name": "test_custom_header", "description": "mirrors", "inputSchema": header}]

    async def call(self, call: Call) -> Json:
        if call.name in ASKING:
            return await self._ask(call)
        if call.name == "test_missing_capability":
            raise RpcError(-32021, "the client lacks sampling", {"requiredCapabilities": {"sampling": {}}})
        if call.name == "test_tool_with_progress":
            await asyncio.sleep(SLOW)
        return RESULTS.get(call.name, {"content": [TEXT]})

    async def _ask(self, call: Call) -> Json:
        """Ask round by round. The question that a modern client answers has the number of its round in its run."""
        rounds = ASKING[call.name]
        first, told = 0, {}
        if call.answered is not None:
            first = int(call.answered[0].run, 16)
            told = call.answered[1] if rounds[first].keys() <= call.answered[1].keys() else {}
            first += bool(told)
        for number, requests in list(enumerate(rounds))[first:]:
            # A legacy client has told only whether it shows forms.
            able = call.capabilities.keys() | ({"sampling", "roots"} if call.sender else set())
            wanted = {name: request for name, request in requests.items() if NEEDS[request["method"]] in able}
            if wanted:
                self._asked += 1
                told = await call.ask(wanted, Question("fixture", f"{number:032x}", self._asked))
        return {"content": [{"type": "text", "text": f"state-ok: {told}"}]}


class FixtureServer(Server):
    """Answers the suite's requests for prompts and resources, which the gateway does not offer."""

    def legacy(self, message: Message) -> Json:
        if (told := self._offered(message)) is None:
            told = super().legacy(message)
        if message.method == "initialize":
            told["capabilities"] |= OFFERED
        return told

    def modern(self, message: Message) -> Json:
        if (told := self._offered(message)) is None:
            told = super().modern(message)
        if message.method == "server/discover":
            told["capabilities"] |= OFFERED
        return told if "resultType" in told else self.complete({"ttlMs": TTL_MS, "cacheScope": "public"} | told)

    def _offered(self, message: Message) -> Json | None:
        params = message.params
        match message.method:
            case "prompts/list":
                return {"prompts": [{"name": name, "description": name} for name in PROMPTS]}
            case "prompts/get" if params.get("name") in PROMPTS:
                return {
                    "messages": [{"role": "user", "content": _filled(each, params)} for each in PROMPTS[params["name"]]]
                }
            case "resources/list":
                return {"resources": [{"uri": uri, "name": uri, "description": uri} for uri in RESOURCES]}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "test://template/{id}/data", "name": "template"}]}
            case "resources/read" if params.get("uri") in RESOURCES:
                return {"contents": [RESOURCES[params["uri"]] | {"uri": params["uri"]}]}
            case "resources/read":
                raise RpcError(INVALID_PARAMS, "there is no such resource", {"uri": params.get("uri")})
        return None


#: capabilities of the server besides tools
OFFERED: Json = {"prompts": {}, "resources": {}}


def _filled(content: Json, params: Json) -> Json:
    """Return a prompt's content with the arguments in their places."""
    given = params.get("arguments") or {}
    if "resourceUri" in given and "resource" in content:
        return content | {"resource": content["resource"] | {"uri": given["resourceUri"]}}
    return content | {"text": content["text"].format(**given)} if "{" in content.get("text", "") else content


handler.PROGRESS = PROGRESS  # the suite does not wait for five seconds
mcp.GatewayTools = FixtureTools  # type: ignore[assignment,attr-defined]
mcp.Server = FixtureServer  # type: ignore[attr-defined]
McpHandler.authenticate = lambda _handler: Caller("alice")  # type: ignore[assignment,method-assign]

if __name__ == "__main__":
    sys.exit(main())
