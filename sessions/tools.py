"""Asks the image's tools: they run beside user code, as its user, and what they answer is not trusted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any, Protocol

import orjson

from sessions.errors import ConnectionFailed
from sessions.models import Limits

#: bytes of a tool's first line, which holds a listing, or what a program has printed
ANSWER_MAX = 8 * 1024**2


class Runner(Protocol):
    """What can run tools: a container, or whoever has one."""

    def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools; see `KernelHandle.run_tool`."""


class Place(Runner, Protocol):
    """Where files and programs are: a session, or a sandbox of several."""

    @property
    def limits(self) -> Limits:
        """What may be used there."""

    def charge_upload(self, size: int) -> None:
        """Count bytes of a file that is sent there, before they are written.

        Raises:
            QuotaExceeded: its tenant has used up what it may.
        """


async def ask(
    place: Runner, tool: str, request: dict[str, Any], stdin: AsyncIterable[bytes] | None = None
) -> dict[str, Any]:
    """A tool's answer.

    Raises:
        ConnectionFailed: it gave none that is valid.
    """
    async with aclosing(place.run_tool(tool, orjson.dumps(request).decode(), stdin)) as output:
        return (await first_line(output))[0]


async def first_line(output: AsyncGenerator[bytes, None]) -> tuple[dict[str, Any], bytes]:
    """A tool's answer, and what already came after it.

    Raises:
        ConnectionFailed: it gave none that is valid.
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


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(line)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ConnectionFailed("the sandbox gave no valid answer")
    return answer
