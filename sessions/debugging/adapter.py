"""The debug adapter in a kernel: sends DAP requests on the control channel, and checks the answers.

Sources: "Messaging in Jupyter", debug_request; the Debug Adapter Protocol 1.71. The kernel may be hostile: an answer is
parsed into a checked model or refused, texts are cut, and no request waits without end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from sessions.debugging.model import (
    FRAMES_MAX,
    THIS_CELL,
    VARIABLES_MAX,
    BreakpointSet,
    Frame,
    FrameVariable,
    Name,
    Value,
)
from sessions.kernels.kernel import Kernel
from sessions.model.errors import ConnectionFailed, DebugRefused, SessionError
from sessions.model.values import Breakpoint, DebugPlan

#: seconds within which the debugger answers, within which it is loaded, and within which it lets a cell end: if it does
#: not, `attach` detaches it
TIMEOUT, LOADING_TIMEOUT, ENDING_TIMEOUT = 10.0, 60.0, 2.0
#: characters of the debugger's own refusal
REFUSAL_MAX = 500
#: source of a breakpoint that no code reaches. It stays in the kernel, and tells a later gateway who has attached.
MARK = "/kernel-gateway"
#: DAP's filters of our words for exceptions. IPython catches what a cell's code does not, so debugpy calls that
#: exception not uncaught, but unhandled by the user's code.
_FILTERS = {"raised": "raised", "uncaught": "userUnhandled"}
#: An interrupt of a stopped cell is raised within the debugger, and Python then stops to trace the thread for good.
_TRACE = "__import__('debugpy').trace_this_thread(True)"
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class _Source(BaseModel):
    path: Name = ""


class _Marked(BaseModel):
    source: Name


class _Info(BaseModel):
    isStarted: bool  # noqa: N815 - Jupyter's name
    breakpoints: list[_Marked] = Field(default_factory=list, max_length=100)
    stoppedThreads: list[int] = Field(default_factory=list, max_length=1000)  # noqa: N815 - Jupyter's name

    @property
    def ours(self) -> bool:
        """Whether a gateway has started the debugger, and not a client of the Jupyter API."""
        return self.isStarted and any(one.source == MARK for one in self.breakpoints)


class _Dumped(BaseModel):
    sourcePath: str = Field(max_length=1000)  # noqa: N815 - Jupyter's name


class _Breakpoint(BaseModel):
    line: int = Field(0, ge=0)
    verified: bool
    message: Value = ""


class _Breakpoints(BaseModel):
    breakpoints: list[_Breakpoint] = Field(max_length=1000)


class _Frame(BaseModel):
    id: int
    name: Name
    line: int = Field(ge=0)
    source: _Source = _Source()


class _Stack(BaseModel):
    stackFrames: list[_Frame] = Field(max_length=10_000)  # noqa: N815 - DAP's name


class _Scope(BaseModel):
    variablesReference: int  # noqa: N815 - DAP's name


class _Scopes(BaseModel):
    scopes: list[_Scope] = Field(max_length=100)


class _Variables(BaseModel):
    variables: list[FrameVariable] = Field(max_length=1_000_000)


class _Value(BaseModel):
    result: Value
    type: Name = ""


class Adapter:
    """Debugs one cell in one kernel."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        """Send nothing yet.

        Args:
            kernel: runs the cell.
            code: code of the cell.
        """
        self.kernel = kernel
        self._lines = code.splitlines()
        self._code = code
        self._path = ""
        self._sequence = count(1)
        #: the debugger's own ids of the frames that `frames` has returned last
        self._frames: list[int] = []

    async def attach(self, plan: DebugPlan) -> list[BreakpointSet]:
        """Attach the debugger to the kernel, which runs no cell, and set the breakpoints.

        Raises:
            DebugRefused: when another client debugs in this kernel, or there is no debugger.
            ConnectionFailed: when the kernel gives no valid answer.
        """
        info = await self._ask(_Info, "debugInfo", {}, LOADING_TIMEOUT)
        if info.ours:
            await self.detach()  # it did not answer in time after an earlier cell
        elif info.isStarted:
            raise DebugRefused("another client, over the Jupyter API, debugs in this session")
        client = {"clientID": "kernel-gateway", "adapterID": "", "pathFormat": "path"}
        lines = {"linesStartAt1": True, "columnsStartAt1": True}
        await self._send("initialize", client | lines, LOADING_TIMEOUT)
        await self._send("attach", {}, LOADING_TIMEOUT)
        await self._send("setBreakpoints", {"source": {"path": MARK}, "breakpoints": [{"line": 1}]})
        self._path = (await self._ask(_Dumped, "dumpCell", {"code": self._code})).sourcePath
        found = await self.set_breakpoints(plan.breakpoints)
        await self._send("setExceptionBreakpoints", {"filters": [_FILTERS[name] for name in plan.exceptions]})
        await self._send("configurationDone", {})
        silent = {"silent": True, "store_history": False, "allow_stdin": False}
        self.kernel.connection.send("shell", "execute_request", {"code": _TRACE} | silent)
        return found

    async def left_behind(self) -> list[int] | None:
        """Return the threads that stand where an earlier gateway's debugger has stopped them. Nothing else stops there.

        Returns:
            None when no gateway has attached a debugger to this kernel, or the kernel does not answer.
        """
        threads = None
        with suppress(SessionError):
            info = await self._ask(_Info, "debugInfo", {}, LOADING_TIMEOUT)
            threads = info.stoppedThreads if info.ours else None
            if info.ours:
                await self._stop_nowhere([one.source for one in info.breakpoints if one.source != MARK], TIMEOUT)
        return threads

    async def set_breakpoints(self, breakpoints: tuple[Breakpoint, ...]) -> list[BreakpointSet]:
        """Replace the breakpoints of the cell."""
        wanted = [_described(one) for one in breakpoints]
        asked = {"source": {"path": self._path}, "breakpoints": wanted, "sourceModified": False}
        found = (await self._ask(_Breakpoints, "setBreakpoints", asked)).breakpoints
        return [BreakpointSet(line=one.line, verified=one.verified, message=one.message) for one in found[:1000]]

    async def stop_nowhere(self) -> None:
        """Forget all breakpoints. Else an interrupt of the cell may stop it again, at the interrupt's own exception."""
        await self._stop_nowhere([self._path], ENDING_TIMEOUT)

    async def _stop_nowhere(self, paths: list[str], within: float) -> None:
        await self._send("setExceptionBreakpoints", {"filters": []}, within)
        for path in paths:
            await self._send("setBreakpoints", {"source": {"path": path}, "breakpoints": []}, within)

    async def move(self, command: str, thread: int) -> None:
        """Send `next`, `stepIn`, `stepOut`, `continue` or `pause`."""
        await self._send(command, {"threadId": thread})

    async def frames(self, thread: int) -> list[Frame]:
        """Return the frames of a stopped thread, the innermost first."""
        found = (await self._ask(_Stack, "stackTrace", {"threadId": thread})).stackFrames[:FRAMES_MAX]
        self._frames = [frame.id for frame in found]
        return [self._frame(number, frame) for number, frame in enumerate(found)]

    def _frame(self, number: int, frame: _Frame) -> Frame:
        own = frame.source.path == self._path
        text = self._lines[frame.line - 1].strip() if own and 0 < frame.line <= len(self._lines) else ""
        other = "another cell" if "/ipykernel_" in frame.source.path else frame.source.path
        return Frame(frameId=number, name=frame.name, line=frame.line, source=THIS_CELL if own else other, text=text)

    async def variables(self, frame: int) -> list[FrameVariable]:
        """Return the local variables of a frame that `frames` has returned."""
        scopes = (await self._ask(_Scopes, "scopes", {"frameId": self._id_of(frame)})).scopes
        if not scopes:
            return []
        found = await self._ask(_Variables, "variables", {"variablesReference": scopes[0].variablesReference})
        named = [one for one in found.variables if not one.name.endswith(" variables")]  # groups: special, function, …
        return named[:VARIABLES_MAX]

    async def evaluate(self, expression: str, frame: int) -> FrameVariable:
        """Return the value of an expression in a frame; statements are run, too.

        Raises:
            DebugRefused: when the expression fails; the message names its error.
        """
        asked = {"expression": expression, "frameId": self._id_of(frame), "context": "repl"}
        value = await self._ask(_Value, "evaluate", asked)
        return FrameVariable(name=expression, value=value.result, type=value.type)

    async def detach(self) -> None:
        """Detach the debugger, so that no later cell stops."""
        await self._send("disconnect", {"restart": False, "terminateDebuggee": False}, ENDING_TIMEOUT)

    def _id_of(self, frame: int) -> int:
        if frame >= len(self._frames):
            raise DebugRefused(f"there is no frame {frame}")
        return self._frames[frame]

    async def _ask(
        self, model: type[_ModelT], command: str, arguments: dict[str, Any], within: float = TIMEOUT
    ) -> _ModelT:
        body = await self._send(command, arguments, within)
        try:
            return model.model_validate(body, strict=True)
        except ValidationError:
            raise ConnectionFailed(
                f"the kernel's debugger has answered {command} in a form that has no sense"
            ) from None

    async def _send(self, command: str, arguments: dict[str, Any], within: float = TIMEOUT) -> Any:
        request = {"type": "request", "seq": next(self._sequence), "command": command, "arguments": arguments}
        try:
            async with asyncio.timeout(within):
                reply = (await self.kernel.connection.request("control", "debug_request", request)).content
        except TimeoutError:
            raise ConnectionFailed(f"the kernel's debugger has not answered {command} within {within:.0f} s") from None
        except ConnectionFailed:
            if self.kernel.alive:
                raise
            raise await self.kernel.wait() from None
        if reply.get("success") is not True:
            told = reply.get("message")
            lines = told.strip().splitlines() if isinstance(told, str) else []
            text = lines[-1][-REFUSAL_MAX:] if lines else "it has not said why"  # of a traceback, the error itself
            raise DebugRefused(f"the debugger has refused {command}: {text}")
        return reply.get("body")


def _described(breakpoint_: Breakpoint) -> dict[str, Any]:
    fields = {
        "condition": breakpoint_.condition,
        "hitCondition": breakpoint_.hit_condition,
        "logMessage": breakpoint_.log_message,
    }
    return {"line": breakpoint_.line} | {name: value for name, value in fields.items() if value is not None}
