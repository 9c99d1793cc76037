"""Run long work on the event loop in short slices. Between two slices the loop serves all other clients.

A thread would delay the loop more: Python lets the thread run for 5 ms before the loop continues, and the loop would
wait that long again after each of its system calls.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager

from sessions.model.tasks import spawn
from sessions.tenants.admission import Admission
from sessions.tenants.traffic import LoopTime
from sessions.tenants.waiting import wait_for_turn


class FairLoop:
    """Gives each slice of long work its turn: one at a time, tenants in turn, at most half of the loop's time."""

    def __init__(self, loop_time: LoopTime) -> None:
        """Begin without work.

        Args:
            loop_time: says which tenants have taken more than their share of the loop.
        """
        self._turns = Admission(1, 1)
        self._loop_time = loop_time
        #: each tenant's work that waits for its share
        self._sharing = Admission(1, sys.maxsize)

    def is_beyond_share(self, tenant: str) -> bool:
        """Return whether the tenant's further work should wait."""
        return self._loop_time.wait(tenant) > 0

    @asynccontextmanager
    async def share(self, tenant: str) -> AsyncIterator[None]:
        """Wait until the tenant may take more of the loop. Its pieces of work come one by one, the oldest first."""
        await wait_for_turn(self._sharing, tenant, None)
        try:
            await asyncio.sleep(self._loop_time.wait(tenant))
            yield
        finally:
            self._sharing.leave(tenant)

    @asynccontextmanager
    async def turn(self, tenant: str, rounds: int = 0) -> AsyncIterator[None]:
        """Wait for a turn, and run the slice in the context. Afterwards the loop serves others for the same time.

        Args:
            tenant: tenant that the work is for.
            rounds: iterations of the event loop after the context that still count as the slice.
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
        """Wait for the turn of a slice that the caller runs next, without waiting for anything in it.

        Afterwards the loop serves others for the same time.
        """
        await wait_for_turn(self._turns, tenant, None)
        spawn(self._serve_others(tenant, time.perf_counter()), "others are served")

    async def _serve_others(self, tenant: str, began: float) -> None:
        try:
            await asyncio.sleep(time.perf_counter() - began)
        finally:
            self._turns.leave(tenant)

    async def iterate(self, tenant: str, work: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the values of an iterator, each computed in a slice of its own.

        Args:
            tenant: tenant that the work is for.
            work: the iterator; it should compute a value in about a millisecond.
        """
        while True:
            async with self.turn(tenant):
                piece = next(work, None)
            if piece is None:
                return
            yield piece
