"""Models of the events that a streamed execute and a WebSocket send. The OpenAPI document shows them.

The handlers send plain dicts; a test validates real events with these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from kernel_gateway.dialects.native.debug import DebugInfo
from kernel_gateway.dialects.native.models import ErrorDetail, Result
from sessions.debugging.model import Frame


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: int | str | None = Field(
        None, description="NDJSON: number of the event, for Last-Event-ID; WebSocket: `id` of the cell's frame"
    )


class StartedEvent(_Event):
    """The cell's turn has come."""

    type: Literal["started"]
    execution_count: int | None


class OutputEvent(_Event):
    """The cell has shown something."""

    type: Literal["output"]
    output: dict[str, Any] = Field(description="nbformat 4.5 output; text may come in several pieces")
    display_id: str = Field("", description="id by which later `update_display_data` events change it; absent: none do")


class UpdateEvent(_Event):
    """The cell has changed a display, perhaps one of an earlier cell."""

    type: Literal["update_display_data"]
    display_id: str
    data: dict[str, Any]
    metadata: dict[str, Any]


class ClearEvent(_Event):
    """The cell has cleared its outputs."""

    type: Literal["clear_output"]
    wait: bool = Field(description="true: not before the next output")


class InputEvent(_Event):
    """The cell waits for an answer to `input()`; on a WebSocket, or in a stream of an `interactive` execute."""

    type: Literal["input_request"]
    prompt: str
    password: bool


class ToolCallEvent(_Event):
    """The cell has called a tool, and waits for the answer; on a WebSocket, or in a stream of a cell with `tools`."""

    type: Literal["tool_call"]
    call: str = Field(description="id for the answer")
    name: str
    arguments: dict[str, Any]


class StoppedEvent(_Event):
    """A debugged cell stands: at a breakpoint, after a step, at an exception, or because it was paused."""

    type: Literal["stopped"]
    reason: str = Field(description="DAP's reason: breakpoint, step, exception, pause")
    description: str | None = Field(description="name and text of the exception")
    line: int | None = Field(description="line of the cell's code; null: no frame of the cell's code is known")
    frame: Frame | None = Field(description="the innermost frame; null: the debugger has not told it")


class ContinuedEvent(_Event):
    """A debugged cell goes on."""

    type: Literal["continued"]


class DebugEvent(_Event, DebugInfo):
    """The answer to a command for the debugger; on a WebSocket, with the `id` of the command's frame."""

    type: Literal["debug"]


class ErrorEvent(_Event):
    """A WebSocket's frame was refused, or its cell could not be run; or a cell runs on while the gateway restarts."""

    type: Literal["error"]
    error: ErrorDetail


class ResultEvent(_Event, Result):
    """The last event of a cell. It has `outputs` only if earlier events are no longer kept."""

    type: Literal["result"]
    outputs: list[dict[str, Any]] = Field(default_factory=list)


class Event(
    RootModel[
        Annotated[
            StartedEvent
            | OutputEvent
            | UpdateEvent
            | ClearEvent
            | InputEvent
            | ToolCallEvent
            | StoppedEvent
            | ContinuedEvent
            | DebugEvent
            | ErrorEvent
            | ResultEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """One event."""
