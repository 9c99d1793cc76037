"""Sends requests to the image's tools. They run beside user code, as its user, so their answers are not trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

import orjson

from kernel_image.protocol import FILES_TOOL
from sessions.model import bounded_json
from sessions.model.errors import ConnectionFailed, QuotaExceeded, SessionError
from sessions.model.values import Limits

#: maximum bytes of a tool's first line, which may hold a list of files or the output of a command
ANSWER_MAX = 8 * 1024**2


class ToolRunner(Protocol):
    """Runs tools: a container, or an object that owns a container."""

    def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools, as in `KernelHandle.run_tool`."""


class WorkspaceOwner(ToolRunner, Protocol):
    """The owner of a workspace: a session, or a sandbox of several sessions."""

    @property
    def limits(self) -> Limits:
        """The limits of the session or sandbox."""

    def charge_upload(self, size: int) -> None:
        """Count bytes of a file that is uploaded, before they are written.

        Raises:
            QuotaExceeded: when the tenant's allowance is used up.
        """


async def ask(
    runner: ToolRunner, tool: str, request: dict[str, Any], stdin: AsyncIterable[bytes] | None = None
) -> dict[str, Any]:
    """Run a tool, and return its answer.

    Raises:
        ConnectionFailed: when the tool gave no valid answer.
    """
    async with aclosing(runner.run_tool(tool, orjson.dumps(request).decode(), stdin)) as output:
        return (await first_line(output))[0]


async def responds_within(runner: ToolRunner, seconds: float) -> bool:
    """Return whether a container runs a tool within `seconds`, or already runs as many tools as it may."""
    try:
        async with asyncio.timeout(seconds):
            await ask(runner, FILES_TOOL, {"op": "stat", "path": ""})
    except QuotaExceeded:
        return True
    except (TimeoutError, SessionError):
        return False
    return True


async def first_line(output: AsyncGenerator[bytes, None]) -> tuple[dict[str, Any], bytes]:
    """Return a tool's answer, and the bytes that have already arrived after it.

    Raises:
        ConnectionFailed: when the tool gave no valid answer.
    """
    seen = bytearray()
    async for piece in output:
        seen += piece
        if b"\n" in piece:
            line, _, rest = bytes(seen).partition(b"\n")
            return _parsed(line), rest
        if len(seen) > ANSWER_MAX:
            break
    raise ConnectionFailed("the sandbox gave no valid answer")


async def open_end() -> AsyncIterator[bytes]:
    """Yield nothing until the caller is cancelled. A tool that runs for long ends when this input ends."""
    await asyncio.Event().wait()
    yield b""


async def lines_of(output: AsyncIterable[bytes], longest: int) -> AsyncIterator[bytes]:
    """Yield the lines of a tool's output, without the newlines.

    Args:
        output: pieces of the tool's output.
        longest: maximum bytes of a line.

    Raises:
        ConnectionFailed: when a line is longer, or the last line has no newline.
    """
    rest = bytearray()
    async for piece in output:
        *lines, tail = piece.split(b"\n")
        for line in lines:
            rest += line
            if len(rest) > longest:
                raise ConnectionFailed("the sandbox gave no valid answer")
            yield bytes(rest)
            rest.clear()
        rest += tail
        if len(rest) > longest:
            break
    if rest:
        raise ConnectionFailed("the sandbox gave no valid answer")


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = bounded_json.loads(line)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ConnectionFailed("the sandbox gave no valid answer")
    return answer
