"""The frames of the exception that has ended a cell, as the kernel describes them without a debugger.

The kernel answers on its control channel (`kernel_image/python_kernel/post_mortem.py`). It may be hostile, so its
answer is checked. An expression runs as an execution, in the frame.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, Field, ValidationError

from kernel_image.protocol import FRAMES_REQUEST
from sessions.debugging.model import FRAMES_MAX, DebugState, Frame, FrameVariable, Name, Seen, Value
from sessions.kernels.kernel import Kernel
from sessions.model.errors import ConnectionFailed, DebuggerUnavailable, DebugRefused
from sessions.model.values import ExecutionResult, Status

#: seconds within which a kernel must answer
TIMEOUT = 5.0


class _Frame(BaseModel):
    name: Name
    line: int = Field(ge=0)
    source: Name
    text: Value


class _Variable(BaseModel):
    name: Name
    type: Name
    preview: Value


class _Frames(BaseModel):
    exception: Name = ""
    text: Value = ""
    frames: list[_Frame] = Field(max_length=FRAMES_MAX)
    variables: list[_Variable] | None = Field(None, max_length=1000)


async def frames_of(kernel: Kernel, frame: int) -> Seen:
    """Return the frames of the kernel's last uncaught exception, and the variables of one of them.

    Raises:
        DebuggerUnavailable: when kernels of this language do not describe them.
        DebugRefused: when there is no such frame.
        ConnectionFailed: when the kernel gives no valid answer in time.
        KernelDied: when the kernel has ended meanwhile.
    """
    spec = kernel.launch.kernelspec
    if not spec.debugger:
        raise DebuggerUnavailable(f"cells of {spec.display_name} cannot be debugged")
    try:
        async with asyncio.timeout(TIMEOUT):
            reply = await kernel.connection.request("control", FRAMES_REQUEST, {"frame": frame})
        found = _Frames.model_validate(reply.content, strict=True)
    except TimeoutError:
        raise ConnectionFailed(f"the kernel did not describe its frames within {TIMEOUT:.0f} s") from None
    except ValidationError:
        raise ConnectionFailed("the kernel described its frames in a form that this gateway cannot read") from None
    except ConnectionFailed:
        if kernel.alive:
            raise
        raise await kernel.wait() from None
    if not found.frames:
        return Seen(DebugState.NONE)
    if found.variables is None:
        raise DebugRefused(f"there is no frame {frame}")
    return Seen(
        DebugState.POST_MORTEM,
        reason="exception",
        description=f"{found.exception}: {found.text}",
        frames=[
            Frame(frameId=number, name=one.name, line=one.line, source=one.source, text=one.text)
            for number, one in enumerate(found.frames)
        ],
        variables=[FrameVariable(name=one.name, value=one.preview, type=one.type) for one in found.variables],
    )


def value_of(expression: str, result: ExecutionResult) -> FrameVariable:
    """Return the value of an expression that ran in a frame: what it has shown.

    Raises:
        DebugRefused: when it has failed; the message names its error.
    """
    errors = [output for output in result.outputs if output["output_type"] == "error"]
    if result.status is not Status.OK or errors:
        why = f"{errors[-1]['ename']}: {errors[-1]['evalue']}" if errors else result.status.value
        raise DebugRefused(f"the expression has failed: {why[:500]}")
    texts = [
        output["text"] if output["output_type"] == "stream" else str(output["data"].get("text/plain", ""))
        for output in result.outputs
    ]
    return FrameVariable(name=expression, value="".join(texts))
