"""The gateway's tools, by name."""

from __future__ import annotations

from kernel_gateway.dialects.mcp.calls import Call
from kernel_gateway.dialects.mcp.debugging import Debugging
from kernel_gateway.dialects.mcp.results import of_failure
from kernel_gateway.dialects.mcp.rpc import Json
from kernel_gateway.dialects.mcp.run_code import Runs
from kernel_gateway.dialects.mcp.session_tools import SessionTools
from kernel_gateway.dialects.mcp.tools import INSTRUCTIONS, TOOLS
from kernel_gateway.gateway import Gateway
from sessions.model.errors import SessionError


class GatewayTools:
    """The six tools."""

    name = "sandboxed-kernel-gateway"
    instructions = INSTRUCTIONS

    def __init__(self, gateway: Gateway) -> None:
        """Offer the tools of a gateway."""
        runs, sessions = Runs(gateway), SessionTools(gateway)
        self._tools = {
            "run_code": runs.run_code,
            "files": sessions.files,
            "session": sessions.session,
            "checkpoint": sessions.checkpoint,
            "wait": runs.wait,
            "debug": Debugging(gateway).debug,
        }

    def listed(self) -> list[Json]:
        """Return the descriptions of all tools."""
        return list(TOOLS)

    async def call(self, call: Call) -> Json:
        """Run a tool. What fails is a result, too: the model reads it, and can do better."""
        try:
            return await self._tools[call.name](call)
        except SessionError as error:
            return of_failure(error)
