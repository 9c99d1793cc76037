"""How code may go on at a cursor, as the kernel knows it. The kernel may be hostile, so its answer is checked."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from sessions.kernels.kernel import Kernel
from sessions.model.errors import ConnectionFailed

#: seconds within which a kernel must answer
TIMEOUT = 5.0
#: number of completions that are returned
MATCHES_MAX = 200


class Completion(BaseModel):
    """How code may go on: each match replaces the characters from `start` to `end`."""

    matches: list[Annotated[str, Field(max_length=1000)]] = Field(description=f"at most {MATCHES_MAX}")
    start: NonNegativeInt = Field(description="first character that a match replaces, from 0")
    end: NonNegativeInt = Field(description="the character behind the last one")


async def complete(kernel: Kernel, code: str, cursor: int) -> Completion:
    """Return how code may go on.

    Args:
        kernel: kernel that runs no cell.
        code: the code.
        cursor: number of the code's characters before the cursor.

    Raises:
        ConnectionFailed: when the kernel does not answer in time, or not in a form that can be read.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            asked = {"code": code, "cursor_pos": cursor}
            reply = await kernel.connection.request("shell", "complete_request", asked)
    except TimeoutError:
        raise ConnectionFailed(f"the kernel completed no code within {TIMEOUT:.0f} s") from None
    told = {"start": reply.content.get("cursor_start"), "end": reply.content.get("cursor_end")}
    matches = reply.content.get("matches")
    told["matches"] = matches[:MATCHES_MAX] if isinstance(matches, list) else None
    try:
        return Completion.model_validate(told, strict=True)
    except ValidationError:
        raise ConnectionFailed("the kernel completed code in a form that this gateway cannot read") from None
