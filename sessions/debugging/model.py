"""What a debugger tells. Pure. A kernel's own words about frames and variables are checked and cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, NonNegativeInt

from sessions.model.errors import SessionError

#: maximum characters of a name, and of a value, that a kernel tells; the rest is cut off
NAME_MAX, VALUE_MAX = 200, 2000
#: maximum frames, and variables of a frame
FRAMES_MAX, VARIABLES_MAX = 50, 200
#: source of the frames in the debugged cell's own code
THIS_CELL = "this cell"


class DebugState(StrEnum):
    """What there is to look at."""

    #: no cell is debugged, and no exception has ended one
    NONE = "none"
    RUNNING = "running"
    STOPPED = "stopped"
    #: the debugged cell has ended
    ENDED = "ended"
    #: the frames of the exception that has ended a cell
    POST_MORTEM = "post_mortem"


def _cut(most: int) -> BeforeValidator:
    return BeforeValidator(lambda text: text[:most] if isinstance(text, str) else text)


Name = Annotated[str, _cut(NAME_MAX)]
Value = Annotated[str, _cut(VALUE_MAX)]


class Frame(BaseModel):
    """A call that has not returned, the innermost first."""

    frameId: NonNegativeInt  # noqa: N815 - DAP's name
    name: Name
    line: NonNegativeInt
    source: Name
    #: the line of its source, if that is known
    text: Value = ""


class FrameVariable(BaseModel):
    """A variable of a frame, or the value of an expression."""

    name: Name
    value: Value
    type: Name = ""


class BreakpointSet(BaseModel):
    """A breakpoint as the debugger has set it."""

    line: NonNegativeInt
    verified: bool
    message: Value = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why and where a cell has stopped."""

    thread: int
    #: DAP's reason: breakpoint, step, exception, pause …
    reason: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client sees of the debugger after each command."""

    state: DebugState
    reason: str = ""
    description: str = ""
    #: id of the debugged execution
    execution: str = ""
    frames: list[Frame] = field(default_factory=list)
    breakpoints: list[BreakpointSet] = field(default_factory=list)
    variables: list[FrameVariable] | None = None
    value: FrameVariable | None = None
    #: texts of log points since the last answer
    log: list[str] = field(default_factory=list)
    #: why the cell was not run
    error: SessionError | None = None
