"""Ends what is idle, expired or dead.

Activity is what clients do: executions, files, frames on a WebSocket. What a kernel prints by itself is none,
or a thread that prints every minute would live forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

import structlog

from sessions.memory import give_back
from sessions.registry import Registry
from sessions.sandbox import Sandbox
from sessions.sandboxes import Sandboxes
from sessions.session import Session
from sessions.tasks import forever, together

log = structlog.get_logger()

#: seconds that a look may come too late
STALL = 5.0


class Culler:
    """Looks at all sessions from time to time."""

    def __init__(
        self,
        registry: Registry,
        sandboxes: Sandboxes,
        max_lifetime: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the rules.

        Args:
            registry: whose sessions; each has its own idle timeout.
            sandboxes: which have their own too, and a lifetime; their sessions end with them.
            max_lifetime: seconds after which even what is busy is ended; 0: no limit.
            clock: seconds that pass whether the gateway runs or stands still.
        """
        self._registry = registry
        self._sandboxes = sandboxes
        self._max_lifetime = max_lifetime
        self._clock = clock

    def verdict(self, session: Session) -> str | None:
        """Why a session is to be ended now, if it is."""
        if session.spec.workspace is not None:
            return None  # its sandbox is what is idle, or expired
        if session.left_at is not None:
            return None  # nobody can use it yet
        if 0 < self._max_lifetime <= session.age():
            return f"the session reached its maximum lifetime of {self._max_lifetime:g} s"
        if session.idle_for() >= session.spec.idle_timeout:
            return f"the session was idle for {session.spec.idle_timeout:g} s"
        return None

    def verdict_on(self, sandbox: Sandbox) -> str | None:
        """Why a sandbox is to be ended now, if it is."""
        if sandbox.left_at is not None:
            return None
        lifetime = min(filter(None, (self._max_lifetime, sandbox.spec.lifetime)), default=0.0)
        if 0 < lifetime <= sandbox.age():
            return f"it reached its maximum lifetime of {lifetime:g} s"
        if sandbox.idle_for() >= sandbox.spec.idle_timeout:
            return f"it was idle for {sandbox.spec.idle_timeout:g} s"
        return None

    async def sweep(self) -> int:
        """End what is to be ended.

        Returns:
            how many sessions and sandboxes were ended.

        Raises:
            ExceptionGroup: not all that they had could be freed.
        """
        ending = []
        for sandbox in self._sandboxes.all():
            if reason := self.verdict_on(sandbox):
                log.info("sandbox culled", tenant=sandbox.key.tenant, sandbox=sandbox.key.name, reason=reason)
                ending.append(self._sandboxes.end(sandbox.key, reason))
        for session in self._registry.all():
            if reason := self.verdict(session):
                log.info("session culled", tenant=session.key.tenant, session=session.key.name, reason=reason)
                # The verdict and the end of the session's entry are one step: no execution comes between.
                ending.append(self._registry.end(session.key, reason))
        await together(*ending)
        return len(ending)

    async def run(self, interval: float) -> NoReturn:
        """Sweep every `interval` seconds until cancelled, and keep no memory that nobody uses."""

        async def look() -> None:
            before = self._clock()
            await asyncio.sleep(interval)
            if self._clock() - before > interval + STALL:
                return  # the gateway stood still, and so did its clients: who has waited for it comes first
            await self.sweep()
            await asyncio.to_thread(give_back)

        await forever(look, pause=interval)
