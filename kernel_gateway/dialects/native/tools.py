"""Tools in code: functions of the client, as a cell's request describes them, and the client's answers to calls."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from kernel_gateway.http.request_body import Body
from sessions.model.errors import InvalidRequest
from sessions.model.values import Tool
from sessions.tools.calls import ToolCalls

#: maximum number of tools of one cell, and characters of a tool's name
TOOLS_MAX = 128
TOOL_NAME_MAX = 128


class ToolParameters(BaseModel):
    """The JSON schema of a tool's arguments. Other fields are allowed and not looked at."""

    properties: dict[str, Any] = Field(
        default_factory=dict, max_length=TOOLS_MAX, description="in the order of positional arguments"
    )


class ToolBody(Body):
    """A function of the client that the cell may call."""

    name: str = Field(
        max_length=TOOL_NAME_MAX, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="a name for `from tools import …`"
    )
    description: str = Field("", max_length=10_000, description="becomes the function's docstring")
    parameters: ToolParameters = Field(default_factory=ToolParameters, description="JSON schema")

    def tool(self) -> Tool:
        """Return the tool for the cell's request."""
        return Tool(self.name, self.description, tuple(self.parameters.properties))


class ToolErrorBody(Body):
    """An error that a tool has raised."""

    name: str = Field(max_length=TOOL_NAME_MAX, description="name of the exception, for example `ValueError`")
    text: str = ""


class ToolAnswer(Body):
    """Answer a call of a tool."""

    tool_call: str = Field(description="`call` of the event `tool_call`")
    value: Any = Field(None, description="what the call returns in the cell, as JSON")
    error: ToolErrorBody | None = Field(None, description="instead of a value: what the call raises in the cell")

    def give(self, calls: ToolCalls | None) -> None:
        """Give the answer to the calls of a cell. None means that no cell runs.

        Raises:
            InvalidRequest: when the call does not wait, or its answer is too large or nested too deeply.
        """
        if calls is None:
            raise InvalidRequest("no cell runs that could have called a tool", field="tool_call")
        if self.error is None:
            calls.answer(self.tool_call, self.value)
        else:
            calls.fail(self.tool_call, self.error.name, self.error.text)
