"""Other uses of the channels by front ends: a debug session, and subshells beside a busy cell."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kernel_gateway.dialects.jupyter.framing import V1
from tests.gateways import Gateway
from tests.kernel_gateway.jupyter import Client, connected
from tests.tiers import some

#: seconds for which the kernel keeps the answer to `disconnect`
DEBUGPY_LEAVES = 0.3
CODE = "def area(width, height):\n    product = width * height\n    return product\n\nprint(area(6, 7))"


class Debugger:
    """A client of the debug adapter protocol inside Jupyter messages, as in front ends."""

    def __init__(self, client: Client) -> None:
        self.client = client
        #: events that arrived while the client waited for another message
        self.events: list[dict[str, Any]] = []
        self.printed = ""
        self._seq = 0

    async def ask(self, command: str, **arguments: Any) -> Any:
        """Send a request and return its answer. Source: "Messaging in Jupyter", debug_request."""
        self._seq += 1
        content = {"type": "request", "seq": self._seq, "command": command, "arguments": arguments}
        msg_id = await self.client.send("control", "debug_request", content)
        while True:
            message = await self._next()
            if message["parent"].get("msg_id") == msg_id and message["channel"] == "control":
                assert message["content"]["success"], message["content"]
                return message["content"].get("body")

    async def _next(self) -> dict[str, Any]:
        message = await self.client.next()
        if message["header"]["msg_type"] == "debug_event":
            self.events.append(message["content"])
        self.printed += message["content"].get("text", "")
        return message

    async def event(self, name: str) -> dict[str, Any]:
        """Return the next event of this name."""
        while not (found := [event for event in self.events if event["event"] == name]):
            await self._next()
        self.events.remove(found[0])
        return found[0]


@pytest.mark.parametrize("way", some([V1, None], gate=1))
async def test_a_breakpoint_is_hit_and_variables_are_inspected(gateway: Gateway, kernel: str, way: str | None) -> None:
    async with connected(gateway, kernel, way) as client:
        debugger = Debugger(client)
        await debugger.ask("initialize", clientID="test", adapterID="", pathFormat="path", linesStartAt1=True)
        await debugger.ask("attach")
        source = {"path": (await debugger.ask("dumpCell", code=CODE))["sourcePath"]}
        found = await debugger.ask("setBreakpoints", source=source, breakpoints=[{"line": 3}], sourceModified=False)
        assert [point["verified"] for point in found["breakpoints"]] == [True]
        await debugger.ask("configurationDone")
        assert (await debugger.ask("debugInfo"))["isStarted"]

        cell = await client.send("shell", "execute_request", {"code": CODE, "store_history": True})
        stopped = await debugger.event("stopped")
        assert stopped["body"]["reason"] == "breakpoint"
        thread = stopped["body"]["threadId"]
        frame = (await debugger.ask("stackTrace", threadId=thread))["stackFrames"][0]
        assert (frame["name"], frame["line"]) == ("area", 3)
        scopes = (await debugger.ask("scopes", frameId=frame["id"]))["scopes"]
        reference = next(scope["variablesReference"] for scope in scopes if scope["name"] == "Locals")
        variables = (await debugger.ask("variables", variablesReference=reference))["variables"]
        values = {variable["name"]: variable["value"] for variable in variables}
        assert (values["width"], values["height"], values["product"]) == ("6", "7", "42")
        assert gateway.call("GET", f"/api/kernels/{kernel}").json()["execution_state"] == "busy"
        assert debugger.printed == ""

        await debugger.ask("continue", threadId=thread)
        await debugger.event("continued")
        while debugger.printed != "42\n":
            await debugger._next()
        began = time.monotonic()
        await debugger.ask("disconnect", restart=False, terminateDebuggee=False)
        assert time.monotonic() - began >= DEBUGPY_LEAVES  # a client that came earlier would be the last one
        assert await client.text("print(area(1, 2))") == "2\n"
        assert cell


async def test_a_subshell_answers_beside_a_busy_cell(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        info = await client.of(await client.send("shell", "kernel_info_request", {}))
        assert "kernel subshells" in [f for m in info for f in m["content"].get("supported_features", ())]
        made = await reply(client, await client.send("control", "create_subshell_request", {}))
        subshell = made["subshell_id"]
        waits = "import threading\nflag = threading.Event()\nprint('waited', flag.wait(60))"
        cell = await client.send("shell", "execute_request", {"code": waits})
        while (await client.next())["header"]["msg_type"] != "execute_input":
            pass
        # The cell waits for the code that runs in the subshell meanwhile.
        beside = {"code": "while 'flag' not in globals(): pass\nflag.set()", "store_history": False}
        other = await client.send("shell", "execute_request", beside, subshell_id=subshell)
        left = {(asked, end) for asked in (cell, other) for end in ("ok", "idle")}
        printed = ""
        while left:
            message = await client.next()
            content = message["content"]
            printed += content.get("text", "")
            left.discard((message["parent"].get("msg_id"), content.get("status", content.get("execution_state"))))
        assert printed == "waited True\n"
        gone = await client.send("control", "delete_subshell_request", {"subshell_id": subshell})
        assert (await reply(client, gone))["status"] == "ok"
        assert await client.text("print(flag.is_set())") == "True\n"


async def reply(client: Client, msg_id: str) -> dict[str, Any]:
    """Return the content of a request's reply."""
    (found,) = [message for message in await client.of(msg_id) if message["channel"] != "iopub"]
    content: dict[str, Any] = found["content"]
    return content
