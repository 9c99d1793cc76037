"""Whose turn the kernel is: one cell of an API client at a time, or work between two cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from sessions.session.owner import Activity

T = TypeVar("T")


class Turn:
    """Gives the kernel of one session to one user at a time, in the order in which they ask."""

    def __init__(self, activity: Activity, quiet: Callable[[], Awaitable[None]]) -> None:
        """Begin without a user.

        Args:
            activity: the session's activity.
            quiet: returns when no cell of a channel client runs: these take no turn.
        """
        #: held by the user; a takeover holds it without waiting for channel clients, which have no kernel yet
        self.lock = asyncio.Lock()
        self._activity = activity
        self._quiet = quiet

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take the turn, and wait until no cell of a channel client runs."""
        async with self.lock:
            await self._quiet()
            yield

    async def between_cells(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something to the kernel while no cell runs, and return its result; the caller does not cancel it."""
        with self._activity.use():
            async with self.taken():
                return await work()
