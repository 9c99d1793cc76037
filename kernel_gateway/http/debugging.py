"""Commands of the debugger, for the dialects that have it. The names are those of the Debug Adapter Protocol."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_gateway.http.request_body import Body
from sessions.debugging.debugger import ANSWER_WITHIN, valid_plan
from sessions.debugging.model import DebugState, Seen
from sessions.model.errors import InvalidRequest
from sessions.model.values import Breakpoint, DebugPlan, ExecuteRequest
from sessions.session.session import Session

#: maximum breakpoints of a cell, and characters of a condition or an expression
BREAKPOINTS_MAX, EXPRESSION_MAX = 100, 10_000
#: maximum characters of a debugged cell
CODE_MAX = 1024**2
_Expression = Annotated[str, Field(max_length=EXPRESSION_MAX)]


class BreakpointBody(Body):
    """A line where the cell stops."""

    line: int = Field(ge=1, description="line of the code, from 1")
    condition: _Expression | None = Field(None, description="stop only if this expression is true there")
    hitCondition: _Expression | None = Field(  # noqa: N815 - DAP's name
        None, description="stop at this hit only, for example `3` or `>= 3`"
    )
    logMessage: _Expression | None = Field(  # noqa: N815 - DAP's name
        None, description="do not stop, but log this text; `{expressions}` in it are evaluated"
    )

    def breakpoint(self) -> Breakpoint:
        """Return it for the domain."""
        return Breakpoint(self.line, self.condition, self.hitCondition, self.logMessage)


class DebugBody(Body):
    """Where a cell stops that runs under the debugger."""

    breakpoints: list[BreakpointBody] = Field(
        default_factory=list, max_length=BREAKPOINTS_MAX, description="lines of the code; setBreakpoints replaces all"
    )
    exceptions: list[Literal["raised", "uncaught"]] = Field(
        default_factory=list,
        max_length=2,
        description="stop where an exception is `raised` at all, or where one leaves the cell's code `uncaught`",
    )

    def plan(self, code: str) -> DebugPlan:
        """Return it for the domain.

        Raises:
            InvalidRequest: when a breakpoint is not in the code.
        """
        return valid_plan(self.places, tuple(self.exceptions), code)

    @property
    def places(self) -> tuple[Breakpoint, ...]:
        """The breakpoints for the domain."""
        return tuple(one.breakpoint() for one in self.breakpoints)


class DebugCommand(DebugBody):
    """A command for the debugger."""

    command: Literal[
        "launch",
        "next",
        "stepIn",
        "stepOut",
        "continue",
        "pause",
        "wait",
        "stackTrace",
        "variables",
        "evaluate",
        "setBreakpoints",
        "terminate",
    ] = Field(
        description="launch: run `code` until it stops; next, stepIn, stepOut, continue: go on; pause: stop a running "
        "cell; wait: for the next stop of a running cell; stackTrace, variables, evaluate: look at the stopped cell, "
        "or else at the exception that has ended the last one (post mortem); terminate: end it, the variables stay"
    )
    code: str | None = Field(None, max_length=CODE_MAX, description="of launch: the cell to run")
    timeout: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="of launch: seconds the cell may run, without those that it stands"
    )
    frameId: int = Field(  # noqa: N815 - DAP's name
        0, ge=0, le=1000, description="of variables and evaluate: number of the frame, 0 for the innermost"
    )
    expression: _Expression | None = Field(None, description="of evaluate; statements are run, too")
    within: float = Field(
        ANSWER_WITHIN,
        ge=0,
        le=ANSWER_WITHIN,
        description="seconds to wait for the next stop, or for the end after terminate; then the state is `running`",
    )


async def obey(session: Session, asked: DebugCommand, timeout: float) -> Seen:  # noqa: ASYNC109 - the cell's, not ours
    """Do what a command asks for. Without a debugged cell, frames are those of the last uncaught exception.

    Args:
        session: the session.
        asked: the command.
        timeout: seconds that a launched cell, or an expression, may run.

    Raises:
        InvalidRequest: when the command lacks what it needs.
        SessionError: as the methods of `Debugger`, and `Session.post_mortem`.
    """
    debugger, expression = session.debugger, _needed(asked)
    match asked.command:
        case "launch":
            request = ExecuteRequest(expression, timeout=timeout, debug=asked.plan(expression))
            seen = debugger.launch(request, asked.within)
        case "evaluate" if debugger.active:
            seen = debugger.evaluate(expression, asked.frameId)
        case "evaluate":
            seen = session.evaluate_post_mortem(expression, asked.frameId, timeout)
        case "stackTrace" | "variables":
            seen = look(session, asked.frameId)
        case "setBreakpoints":
            seen = debugger.set_breakpoints(asked.places)
        case "pause":
            seen = debugger.pause(asked.within)
        case "wait":
            seen = debugger.wait(asked.within)
        case "terminate":
            seen = debugger.terminate(asked.within)
        case "next" | "stepIn" | "stepOut" | "continue":
            seen = debugger.move(asked.command, asked.within)
    return await seen


def _needed(asked: DebugCommand) -> str:
    """Return the code or the expression that a command needs."""
    field = {"launch": "code", "evaluate": "expression"}.get(asked.command)
    text = asked.code if field == "code" else asked.expression
    if field is not None and not text:
        raise InvalidRequest(f"{asked.command} needs {field}", field=field)
    return text or ""


async def look(session: Session, frame: int = 0) -> Seen:
    """Return what there is to see: the debugged cell, or else the last uncaught exception, or else nothing."""
    if session.debugger.active:
        return await session.debugger.look(frame)
    found = await session.post_mortem(frame)
    return await session.debugger.look(frame) if found.state is DebugState.NONE else found
