"""Uses the tools with `fastmcp`: `drive_fastmcp.py URL KEY`."""

import asyncio
import sys
from typing import Any

from fastmcp import Client


async def elicit(_message: str, answer: Any, _params: Any, _context: Any) -> Any:
    """Answer every question."""
    return answer(answer="Ada")


async def main(url: str, key: str) -> None:
    """Use a gateway."""
    async with Client(url, auth=key, elicitation_handler=elicit) as client:

        async def run(**arguments: str) -> Any:
            """Run a cell to its end, however long the gateway takes for it."""
            told = (await client.call_tool("run_code", arguments)).structured_content
            while told["status"] == "running":
                told = (await client.call_tool("wait", {"run": told["run"]})).structured_content
            return told

        assert len(await client.list_tools()) == 6
        told = await run(code="x = 40\nx + 2")
        session = {"session": told["session"]}
        assert told["result"] == "42"
        assert (await run(**session, code="input('Name? ')"))["result"] == "'Ada'"
        assert (await run(**session, code="import time; time.sleep(3)"))["status"] == "ok"
        launch = {"command": "launch", "code": "y = 6\ny * 7", "breakpoints": [{"line": 2}]}
        stopped = (await client.call_tool("debug", session | launch)).structured_content
        assert stopped["state"] in {"running", "stopped"}, stopped
        await client.call_tool("debug", session | {"command": "terminate"})
        for tool, action in (("files", "list"), ("checkpoint", "list"), ("session", "end")):
            await client.call_tool(tool, session | {"action": action})


asyncio.run(main(*sys.argv[1:]))
