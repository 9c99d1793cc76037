"""The turn to use a session's kernel: for one cell of an API client, or for work between two cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from sessions.model.errors import ShuttingDown
from sessions.session.owner import Activity

T = TypeVar("T")


class Turn:
    """Gives the kernel of one session to one user at a time, in the order in which they ask."""

    def __init__(self, activity: Activity, quiet: Callable[[], Awaitable[None]]) -> None:
        """Begin without a user.

        Args:
            activity: the session's activity.
            quiet: waits until no cell of a channel client runs. Such cells take no turn.
        """
        #: held by the present user. A takeover takes it directly, without `quiet`: channel clients have no kernel yet.
        self.lock = asyncio.Lock()
        #: whether nobody gets the turn any more, because the gateway ends and the kernel runs on
        self.closed = False
        self._activity = activity
        self._quiet = quiet

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take the turn, and wait until no cell of a channel client runs.

        Raises:
            ShuttingDown: when the turn was closed.
        """
        async with self.lock:
            await self._quiet()
            if self.closed:
                raise ShuttingDown
            yield

    def close(self) -> None:
        """Give the turn to nobody any more, because the gateway ends and the kernel runs on."""
        self.closed = True

    async def between_cells(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while no cell runs, and return its result. The call must not be cancelled.

        Raises:
            ShuttingDown: when the turn was closed.
        """
        with self._activity.use():
            async with self.taken():
                return await work()
