"""Long work on the event loop, in slices: between two slices the loop serves everybody else.

A thread would keep the loop waiting longer: Python lets it run for 5 ms before the loop continues, and the loop would
wait that long again after each of its system calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager

from sessions.model.tasks import spawn
from sessions.tenants.admission import Admission
from sessions.tenants.waiting import wait_for_turn


class Slices:
    """All such work: one slice at a time, tenants in turn, at most half of the loop's time."""

    def __init__(self) -> None:
        self._turns = Admission(1, 1)

    @asynccontextmanager
    async def turn(self, tenant: str, rounds: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of the work in the context. Then others are served for as long as it took.

        Args:
            tenant: tenant that the work is for.
            rounds: rounds of the event loop that still belong to the work.
        """
        await wait_for_turn(self._turns, tenant, None)
        try:
            began = time.perf_counter()
            yield
            for _ in range(rounds):
                await asyncio.sleep(0)
            await asyncio.sleep(time.perf_counter() - began)
        finally:
            self._turns.leave(tenant)

    async def begin(self, tenant: str) -> None:
        """Wait for the turn of work that follows at once, in one piece. Then others are served for as long."""
        await wait_for_turn(self._turns, tenant, None)
        spawn(self._serve_others(tenant, time.perf_counter()), "others are served")

    async def _serve_others(self, tenant: str, began: float) -> None:
        try:
            await asyncio.sleep(time.perf_counter() - began)
        finally:
            self._turns.leave(tenant)

    async def of(self, tenant: str, work: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield what the work yields.

        Args:
            tenant: tenant that the work is for.
            work: takes a millisecond or so for each value.
        """
        while True:
            async with self.turn(tenant):
                piece = next(work, None)
            if piece is None:
                return
            yield piece
