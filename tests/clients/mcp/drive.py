"""Uses all six tools with the official Python client: `drive.py MODE URL KEY`, or `drive.py MODE COMMAND ...`."""

import asyncio
import sys
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult


async def elicit(context: Any, params: Any) -> ElicitResult:
    """Answer every question."""
    return ElicitResult(action="accept", content={"answer": "Ada"})


#: a cell that runs until the file `go` is there
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n7"


async def use(client: Any) -> None:
    """Use all tools."""

    async def run(**arguments: str) -> Any:
        """Run a cell to its end, however long the gateway takes for it."""
        shown = await client.call_tool("run_code", arguments)
        while shown.structured_content["status"] == "running":
            shown = await client.call_tool("wait", {"run": shown.structured_content["run"]})
        return shown

    async def debug(**arguments: Any) -> Any:
        """Do one command, however long the cell then runs."""
        seen = (await client.call_tool("debug", arguments)).structured_content
        while seen["state"] == "running":
            wait = {"session": arguments["session"], "command": "wait"}
            seen = (await client.call_tool("debug", wait)).structured_content
        return seen

    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == [*("run_code", "files", "session", "checkpoint", "wait", "debug")]
    first = await run(code="x = 40\nx + 2")
    told = first.structured_content
    assert first.content[0].text == f"[session {told['session']}: state new, status ok]"
    session = {"session": told["session"]}
    assert told["result"] == "42"
    asked = await run(**session, code="input('Name? ') + str(x)")
    assert asked.structured_content["result"] == "'Ada40'", asked
    told = (await client.call_tool("run_code", session | {"code": WAITS})).structured_content
    assert told["status"] == "running"
    await client.call_tool("files", session | {"action": "write", "path": "go", "content": ""})
    while told["status"] == "running":
        told = (await client.call_tool("wait", {"run": told["run"]})).structured_content
    assert told["result"] == "7"
    plot = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    assert (await run(**session, code=plot)).content[-1].type == "image"
    assert (await run(**session, code="1 / 0")).is_error
    await client.call_tool("files", session | {"action": "write", "path": "ü.txt", "content": "hé"})
    read = await client.call_tool("files", session | {"action": "read", "path": "ü.txt"})
    assert read.structured_content["content"] == "hé"
    listed = await client.call_tool("checkpoint", session | {"action": "list"})
    assert "checkpoints" in listed.structured_content
    stopped = await debug(**session, command="launch", code="y = 6\ny * 7", breakpoints=[{"line": 2}])
    assert (stopped["state"], stopped["frames"][0]["line"]) == ("stopped", 2), stopped
    assert (await debug(**session, command="continue"))["state"] == "ended"
    ended = await client.call_tool("session", session | {"action": "end"})
    assert ended.structured_content["state"] == "ended"


async def main(mode: str, *words: str) -> None:
    """Use a gateway, by its URL or by a command."""
    if not words[0].startswith("http"):
        server = StdioServerParameters(command=words[0], args=list(words[1:]))
        async with Client(stdio_client(server), mode=mode, elicitation_callback=elicit) as client:
            await use(client)
        return
    headers = {"Authorization": f"Bearer {words[1]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=300) as http:
        transport = streamable_http_client(words[0], http_client=http)
        async with Client(transport, mode=mode, elicitation_callback=elicit) as client:
            await use(client)


asyncio.run(main(*sys.argv[1:]))
