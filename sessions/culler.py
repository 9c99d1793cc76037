"""Culls sessions and sandboxes that are idle or have reached their maximum lifetime.

Activity is what clients do: executions, files, frames on a WebSocket. Output of a kernel is no activity: otherwise a
thread that prints every minute would keep its session forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from sessions.asleep import OnIdle
from sessions.backends.base import no_op
from sessions.heap import trim_heap
from sessions.registry import Registry
from sessions.sandbox import Sandbox
from sessions.sandboxes import Sandboxes
from sessions.session import Session
from sessions.sleep_turns import SleepTurns
from sessions.states import State
from sessions.strays import Strays
from sessions.tasks import forever, gather_all

log = structlog.get_logger()

#: seconds that a sweep may be late; beyond that the gateway itself was stopped
STALL = 5.0


class Culler:
    """Checks all sessions and sandboxes from time to time."""

    def __init__(
        self,
        registry: Registry,
        sandboxes: Sandboxes,
        *,
        max_lifetime: float = 0.0,
        connected_timeout: float = 0.0,
        sleep_for: float = 86400.0,
        max_pause: float = 0.0,
        on_sleep: Callable[[bool], None] = no_op,
        strays: Strays | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the rules.

        Args:
            registry: contains the sessions; each has its own idle timeout.
            sandboxes: all sandboxes; each has its own idle timeout and lifetime, and its sessions end with it.
            max_lifetime: seconds after which even busy sessions and sandboxes are ended; 0: no limit.
            connected_timeout: seconds without activity after which a session with connected channel clients is ended,
                if this is more than its own idle timeout.
            sleep_for: seconds that a session may sleep, or stay awake because it cannot.
            max_pause: seconds after which a paused sandbox is ended; 0: no limit.
            on_sleep: called after each attempt to let a session sleep, with True if it sleeps.
            strays: finds kernels that belong to nobody; None: nobody looks for them.
            clock: returns seconds, which also pass while the gateway is stopped.
        """
        self._registry = registry
        self._sandboxes = sandboxes
        self._max_lifetime = max_lifetime
        self._connected_timeout = connected_timeout
        self._sleep_for = sleep_for
        self._max_pause = max_pause
        self._strays = strays
        self._clock = clock
        self.sleep_turns = SleepTurns(sleep_for, on_sleep)

    def verdict(self, session: Session) -> str | None:
        """Return why a session must end now, or None."""
        if session.spec.in_sandbox:
            return None  # it is culled with its sandbox
        if session.left_container is not None:
            return None  # no client can use it yet
        if self._outlived(session):
            return f"the session reached its maximum lifetime of {self._max_lifetime:g} s"
        if (image := session.sleeper.image) is not None:
            slept = max(0.0, self._registry.now() - image.since)
            return f"the session slept for {slept:.0f} s" if slept >= self._sleep_for else None
        timeout = session.spec.idle_timeout
        if session.channels.clients:
            timeout = max(timeout, self._connected_timeout)
        if session.idle_for() >= timeout:
            return f"the session was idle for {timeout:g} s"
        return None

    def verdict_on(self, sandbox: Sandbox) -> str | None:
        """Return why a sandbox must end now, or None."""
        if sandbox.left_container is not None:
            return None
        paused = self._sandboxes.pause_at_end(sandbox)
        own = 0.0 if paused else sandbox.spec.lifetime
        lifetime = min(filter(None, (self._max_lifetime, own)), default=0.0)
        if 0 < lifetime <= sandbox.age():
            return f"it reached its maximum lifetime of {lifetime:g} s"
        if paused:
            over = 0 < self._max_pause <= sandbox.pausing.paused_for
            return f"it was paused for {self._max_pause:g} s" if over else None
        if 0 < sandbox.spec.idle_timeout <= sandbox.idle_for():
            return f"it was idle for {sandbox.spec.idle_timeout:g} s"
        return None

    async def sweep(self) -> int:
        """End all sessions and sandboxes that must end now, and let the sessions sleep that may.

        Returns:
            the number of sessions and sandboxes that were ended.

        Raises:
            ExceptionGroup: when not everything they had could be freed.
        """
        ending: list[Awaitable[None]] = []
        falling: list[Session] = []
        for sandbox in self._sandboxes.all():
            if reason := self.verdict_on(sandbox):
                log.info("sandbox culled", tenant=sandbox.key.tenant, sandbox=sandbox.key.name, reason=reason)
                ending.append(self._sandboxes.end(sandbox.key, reason))
        for session in self._registry.all():
            if self._may_sleep(session) and not self.sleep_turns.given_up(session):
                falling.append(session)
            elif reason := self.verdict(session):
                # No await between the verdict and the removal of the session: no execution can begin in between.
                ending.append(self._end(session, reason))
        self.sleep_turns.begin(falling, self._may_sleep)
        await gather_all(*ending)
        return len(ending)

    def _may_sleep(self, session: Session) -> bool:
        """Return whether a session must end unless it sleeps."""
        wishes = session.spec.on_idle is OnIdle.SLEEP and session.state is State.IDLE
        return wishes and not self._outlived(session) and self.verdict(session) is not None

    def _outlived(self, session: Session) -> bool:
        return 0 < self._max_lifetime <= session.age()

    def _end(self, session: Session, reason: str) -> asyncio.Future[None]:
        if self.sleep_turns.given_up(session) and not self._outlived(session):
            reason = f"{reason}, and it could not sleep"  # the cause may name paths of the host
        log.info("session culled", tenant=session.key.tenant, session=session.key.name, reason=reason)
        return self._registry.end(session.key, reason)

    async def run(self, interval: float) -> NoReturn:
        """Sweep every `interval` seconds until cancelled, and return unused memory to the system."""

        async def look() -> None:
            before = self._clock()
            await asyncio.sleep(interval)
            if self._clock() - before > interval + STALL:
                return  # the gateway was stopped, and its clients had to wait: let them use their sessions first
            await self.sweep()
            if self._strays is not None:
                await self._strays.sweep()
            await asyncio.to_thread(trim_heap)

        try:
            await forever(look, pause=interval)
        finally:
            self.sleep_turns.stop()
