"""Debugs a cell: commands of a client, and what there is to see then."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from kernel_gateway.dialects.native.models import ErrorDetail
from kernel_gateway.dialects.native.sessions import ExistingHandler
from kernel_gateway.http.debugging import DebugCommand, look, obey
from sessions.debugging.model import BreakpointSet, Frame, FrameVariable, Seen
from sessions.model.values import SessionKey


class DebugInfo(BaseModel):
    """What the debugger sees now."""

    state: Literal["none", "running", "stopped", "ended", "post_mortem"]
    reason: str | None = Field(description="why the cell is stopped: breakpoint, step, exception, pause")
    description: str | None = Field(description="name and text of the exception")
    execution: str | None = Field(description="id of the debugged execution: `GET …/executions/{id}` has its outputs")
    frames: list[Frame] = Field(description="calls that have not returned, the innermost first")
    variables: list[FrameVariable] | None = Field(description="local variables of the frame that was asked for")
    value: FrameVariable | None = Field(description="of evaluate")
    breakpoints: list[BreakpointSet] = Field(description="as the debugger has set them, perhaps in other lines")
    log: list[str] = Field(description="texts of log points since the last answer")
    error: ErrorDetail | None = Field(description="why the cell was not run")

    @classmethod
    def of(cls, seen: Seen) -> Self:
        """Describe it."""
        return cls.model_validate(
            {
                "state": seen.state.value,
                "reason": seen.reason or None,
                "description": seen.description or None,
                "execution": seen.execution or None,
                "frames": seen.frames,
                "variables": seen.variables,
                "value": seen.value,
                "breakpoints": seen.breakpoints,
                "log": seen.log,
                "error": None if seen.error is None else seen.error.as_dict(),
            }
        )


class DebugHandler(ExistingHandler):
    """`/v1/sessions/{name}/debug`."""

    async def get(self, name: str) -> None:
        """Describe what the debugger sees."""
        self.finish_json(_json(await look(self.session(name))))

    async def post(self, name: str) -> None:
        """Do what a command asks for. The debugged cell ends if its client leaves while it waits for the answer."""
        await self.run_until_client_leaves(self._obey(name, self.body(DebugCommand)))

    async def _obey(self, name: str, asked: DebugCommand) -> None:
        timeout = self.tenant_settings.valid_timeout(asked.timeout)
        if asked.command == "launch":
            session = await self.gateway.registry.get_or_create(SessionKey(self.tenant, name))
        else:
            session = self.session(name)
        session.touch()
        try:
            seen = await obey(session, asked, timeout)
        except asyncio.CancelledError:
            session.debugger.leave()
            raise
        self.finish_json(_json(seen))


def _json(seen: Seen) -> dict[str, Any]:
    return DebugInfo.of(seen).model_dump(mode="json")
