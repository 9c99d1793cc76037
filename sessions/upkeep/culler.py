"""Culls sessions and sandboxes that are idle or too old, and lets idle sessions sleep, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn
from weakref import WeakKeyDictionary

import structlog

from sessions.backends.base import no_op
from sessions.model.checkpoint import OnIdle
from sessions.model.tasks import forever, gather_all, spawn
from sessions.sandbox.sandbox import Sandbox
from sessions.sandbox.sandboxes import Sandboxes
from sessions.session.owner import GAVE_WAY
from sessions.session.registry import Registry
from sessions.session.session import Session
from sessions.session.states import State
from sessions.upkeep.heap import trim_heap
from sessions.upkeep.strays import Strays

log = structlog.get_logger()


#: seconds after which another tenant's session may try to fall asleep although this attempt still runs. Measured: 1 s,
#: and 4 s on a busy machine.
SLOW = 4.0
#: maximum number of attempts under way at a time
SLOW_MAX = 16
#: seconds before a session tries again to fall asleep. They double at each failure, up to the second number.
RETRY, RETRY_MAX = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A failed attempt of a session to fall asleep."""

    #: time of the session's last use, in seconds since the session was made
    used: float
    #: seconds between this attempt and the next one
    pause: float
    #: idle time in seconds at which the next attempt is made
    again: float


class SleepTurns:
    """Lets sessions fall asleep in turn, and remembers the sessions that could not."""

    def __init__(
        self, sleep_for: float, on_sleep: Callable[[bool], None], make_room: Callable[[Session], Awaitable[None]]
    ) -> None:
        """Begin without sessions.

        Args:
            sleep_for: seconds that a session that cannot sleep may stay awake, if it was to sleep in any case.
            on_sleep: called after each attempt, with True if the session sleeps.
            make_room: makes room on disk for a session, if that is possible.
        """
        self._make_room = make_room
        self._sleep_for = sleep_for
        self._on_sleep = on_sleep
        #: the last attempt of each session that could not fall asleep
        self._refused: WeakKeyDictionary[Session, _Refusal] = WeakKeyDictionary()
        #: sessions that wait for their turn
        self._waiting: list[Session] = []
        #: number of the last attempt of each session and of each tenant
        self._last: WeakKeyDictionary[Session, int] = WeakKeyDictionary()
        self._last_of: dict[str, int] = {}
        self._number = 0
        #: attempts under way, and their tenants
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._turn: asyncio.Task[None] | None = None

    def begin(self, sessions: Sequence[Session], may_sleep: Callable[[Session], bool]) -> None:
        """Let sessions fall asleep in the background. They replace the sessions that still wait from an earlier call.

        Args:
            sessions: the sessions.
            may_sleep: returns whether a session may still fall asleep when its turn comes.
        """
        self._waiting = [session for session in sessions if self._may_try(session)]
        if self._waiting and (self._turn is None or self._turn.done()):
            self._turn = spawn(self._each(may_sleep), "sleep of idle sessions")

    async def finished(self) -> None:
        """Wait until no session is falling asleep or waits for its turn."""
        while doing := {*self._under_way, *([self._turn] if self._turn and not self._turn.done() else [])}:
            await asyncio.wait(doing)

    def stop(self) -> None:
        """Begin no more attempts. Attempts under way continue."""
        if self._turn is not None:
            self._turn.cancel()

    def given_up(self, session: Session) -> bool:
        """Return whether a session that cannot sleep was kept awake for long enough.

        That is as long as it might have slept. A session that sleeps by default is kept for its idle timeout once more.
        """
        timeout = session.spec.idle_timeout
        longer = timeout if session.spec.on_idle is OnIdle.AUTO else self._sleep_for
        return self._last_refusal(session) is not None and session.idle_for() >= timeout + longer

    def _last_refusal(self, session: Session) -> _Refusal | None:
        """Return a session's last failed attempt. None means that there is none, or that the session was used since."""
        refusal = self._refused.get(session)
        used = session.age() - session.idle_for()
        return refusal if refusal is not None and used < refusal.used + 1.0 else None

    def _may_try(self, session: Session) -> bool:
        """Return whether a session may try to fall asleep: its last failure, if any, is long enough ago."""
        before = self._last_refusal(session)
        return before is None or session.idle_for() >= before.again

    async def _each(self, may_sleep: Callable[[Session], bool]) -> None:
        while session := await self._next():
            if not may_sleep(session):
                continue
            self._number += 1
            self._last[session] = self._last_of[session.key.tenant] = self._number
            attempt = spawn(self._attempt(session), f"sleep of {session.key}")
            self._under_way[attempt] = session.key.tenant
            attempt.add_done_callback(self._under_way.pop)
            await asyncio.wait({attempt}, timeout=SLOW)

    async def _next(self) -> Session | None:
        """Return the next session: the tenant with the longest time since its last turn comes first.

        None means that no session waits any more.
        """
        while self._waiting:
            busy = set(self._under_way.values())
            ready = [session for session in self._waiting if session.key.tenant not in busy]
            if ready and len(self._under_way) < SLOW_MAX:
                session = min(ready, key=self._order)
                self._waiting.remove(session)
                return session
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        return None

    def _order(self, session: Session) -> tuple[int, int]:
        return self._last_of.get(session.key.tenant, 0), self._last.get(session, 0)

    async def _attempt(self, session: Session) -> None:
        idle, before = session.idle_for(), self._last_refusal(session)
        used, pause = session.age() - idle, RETRY if before is None else min(2 * before.pause, RETRY_MAX)
        await self._make_room(session)
        failure = await session.fall_asleep()
        if not failure:
            self._refused.pop(session, None)
            self._on_sleep(True)  # noqa: FBT003 - a callback has no names
            log.info("session sleeps", tenant=session.key.tenant, session=session.key.name)
        elif not session.closed and not session.in_use:
            self._refused[session] = _Refusal(used, pause, idle + pause)
            self._on_sleep(False)  # noqa: FBT003 - as above
            log.warning("a session cannot sleep", session=str(session.key), reason=failure, again_after=pause)


#: seconds that a sweep may be late. A sweep that is later shows that the gateway itself was stopped.
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
            registry: contains the sessions. Each session has its own idle timeout.
            sandboxes: all sandboxes. Each sandbox has its own idle timeout and lifetime, and its sessions end with it.
            max_lifetime: seconds after which even busy sessions and sandboxes are ended. 0 means no limit.
            connected_timeout: seconds without activity after which a session with connected channel clients is ended,
                if this is more than its own idle timeout.
            sleep_for: seconds that a session may sleep, or stay awake if it cannot sleep.
            max_pause: seconds after which a paused sandbox is ended. 0 means no limit.
            on_sleep: called after each attempt to let a session sleep, with True if it sleeps.
            strays: finds and ends stray kernels. None means that no one looks for them.
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
        self.sleep_turns = SleepTurns(sleep_for, on_sleep, self._make_room)

    def reason_to_end(self, session: Session) -> str | None:
        """Return why a session must end now. None means that it may stay."""
        if session.spec.in_sandbox:
            return None  # the session is culled with its sandbox
        if session.left_container is not None:
            return None  # no client can use it yet
        if self._outlived(session):
            return f"the session reached its maximum lifetime of {self._max_lifetime:g} s"
        if (image := session.sleep_image) is not None:
            slept = max(0.0, self._registry.now() - image.since)
            return f"the session slept for {slept:.0f} s" if slept >= self._sleep_for else None
        timeout = session.spec.idle_timeout
        if session.channels.clients:
            timeout = max(timeout, self._connected_timeout)
        if session.idle_for() >= timeout:
            return f"the session was idle for {timeout:g} s"
        return None

    def reason_to_end_sandbox(self, sandbox: Sandbox) -> str | None:
        """Return why a sandbox must end now. None means that it may stay."""
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
        """End all sessions and sandboxes that must end now, and let sessions sleep that may sleep instead.

        Returns:
            the number of sessions and sandboxes that were ended.

        Raises:
            ExceptionGroup: when some resources could not be freed.
        """
        ending: list[Awaitable[None]] = []
        falling: list[Session] = []
        for sandbox in self._sandboxes.all():
            if reason := self.reason_to_end_sandbox(sandbox):
                log.info("sandbox culled", tenant=sandbox.key.tenant, sandbox=sandbox.key.name, reason=reason)
                ending.append(self._sandboxes.end(sandbox.key, reason))
            else:
                sandbox.pausing.try_again()
        for session in self._registry.all():
            if self._may_sleep(session) and not self.sleep_turns.given_up(session):
                falling.append(session)
            elif reason := self.reason_to_end(session):
                # No await between the verdict and the removal of the session: no execution can begin in between.
                ending.append(self._end(session, reason))
        self.sleep_turns.begin(falling, self._may_sleep)
        await gather_all(*ending)
        return len(ending)

    def _may_sleep(self, session: Session) -> bool:
        """Return whether a session may sleep instead of being ended now."""
        on_idle = session.spec.on_idle
        wishes = on_idle is OnIdle.SLEEP or (on_idle is OnIdle.AUTO and session.can_sleep)
        wishes = wishes and session.state is State.IDLE
        return wishes and not self._outlived(session) and self.reason_to_end(session) is not None

    async def _make_room(self, session: Session) -> None:
        """End sessions of the same tenant that sleep by default, the longest first, if that makes room on disk."""
        sleepers, going, freed = iter(self._registry.giving_way(session.key.tenant)), list[Session](), 0
        while not session.has_room_to_sleep(freed):
            if (sleeper := next(sleepers, None)) is None:
                return  # there would not be enough room
            going.append(sleeper)
            freed += sleeper.sleep_image.size if sleeper.sleep_image is not None else 0
        for sleeper in going:
            log.info("session ended to make room", tenant=sleeper.key.tenant, session=sleeper.key.name)
        await gather_all(*(self._registry.end(sleeper.key, GAVE_WAY) for sleeper in going))

    def _outlived(self, session: Session) -> bool:
        return 0 < self._max_lifetime <= session.age()

    def _end(self, session: Session, reason: str) -> asyncio.Future[None]:
        if self.sleep_turns.given_up(session) and not self._outlived(session):
            reason = f"{reason}, and it could not sleep"  # without the cause, which may name paths of the host
        log.info("session culled", tenant=session.key.tenant, session=session.key.name, reason=reason)
        return self._registry.end(session.key, reason)

    async def run(self, interval: float) -> NoReturn:
        """Sweep every `interval` seconds until cancelled, and return unused memory to the system."""

        async def look() -> None:
            before = self._clock()
            await asyncio.sleep(interval)
            if self._clock() - before > interval + STALL:
                return  # the gateway was stopped, and clients had to wait: let them use their sessions first
            await self.sweep()
            if self._strays is not None:
                await self._strays.sweep()
            await asyncio.to_thread(trim_heap)

        try:
            await forever(look, pause=interval)
        finally:
            self.sleep_turns.stop()
