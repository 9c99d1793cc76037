"""Streams that say something also when nothing happens, so that the loss of a client or proxy is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import TypeVar

from sessions.model.tasks import spawn

T = TypeVar("T")


async def with_pauses(events: AsyncIterable[T], seconds: float) -> AsyncGenerator[T | None, None]:
    """Yield the events, none of which is None, and None after each pause of `seconds`.

    When it is closed, nothing waits for an event any more.
    """
    coming = aiter(events)
    upcoming = spawn(_next(coming), "next event")
    try:
        while True:
            await asyncio.wait({upcoming}, timeout=seconds)
            if not upcoming.done():
                yield None
            elif (event := upcoming.result()) is not None:
                yield event
                upcoming = spawn(_next(coming), "next event")  # not earlier: the number of the event would change
            else:
                return
    finally:
        upcoming.cancel()
        await asyncio.wait({upcoming})


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
