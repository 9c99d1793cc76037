"""Adds keep-alives to streams: something is sent even if nothing happens, so that a lost client or proxy is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import TypeVar

from sessions.model.tasks import spawn

T = TypeVar("T")


async def with_keepalive(events: AsyncIterable[T], seconds: float) -> AsyncGenerator[T | None, None]:
    """Yield the events, and None whenever no event has come for `seconds`.

    Closing this generator also stops its task that waits for the next event.

    Args:
        events: the events; none of them is None.
        seconds: time without an event after which None is yielded.
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
                upcoming = spawn(_next(coming), "next event")  # only now: fetching the next event changes the number
            else:
                return
    finally:
        upcoming.cancel()
        await asyncio.wait({upcoming})


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
