"""Idle sessions fall asleep one after the other; one that cannot tries again, ever more rarely.

One at a time, because each takes the memory of a second kernel, and a processor. It takes seconds, for which the
sessions that must end do not wait. Tenants take turns, and a session that was never tried comes before its tenant's
others. One that takes long, as a session can that hangs on purpose, does not keep those of other tenants waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import structlog

from sessions.session import Session
from sessions.tasks import spawn

log = structlog.get_logger()

#: seconds after which the next tenant's session begins although this one is not done; measured: 1 s, when busy 4
SLOW = 4.0
#: attempts that may take longer at a time
SLOW_MAX = 16
#: seconds before a session tries again to fall asleep, doubled at each failure up to the second number
RETRY, RETRY_MAX = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A failed attempt of a session to fall asleep."""

    #: when the session was last used, in seconds since it was made
    used: float
    #: seconds between this attempt and the next one
    pause: float
    #: idle time in seconds at which the next attempt is made
    again: float


class SleepTurns:
    """Lets sessions sleep, and knows those that could not."""

    def __init__(self, sleep_for: float, on_sleep: Callable[[bool], None]) -> None:
        """Begin without sessions.

        Args:
            sleep_for: seconds that a session may stay awake because it cannot sleep.
            on_sleep: called after each attempt, with True if the session sleeps.
        """
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
        """Let sessions sleep in the background, these in place of those that wait.

        Args:
            sessions: sessions to let sleep.
            may_sleep: whether a session may still do so when its turn comes.
        """
        self._waiting = [session for session in sessions if self._may_try(session)]
        if self._waiting and (self._turn is None or self._turn.done()):
            self._turn = spawn(self._each(may_sleep), "sleep of idle sessions")

    async def over(self) -> None:
        """Wait until no session falls asleep."""
        while doing := {*self._under_way, *([self._turn] if self._turn and not self._turn.done() else [])}:
            await asyncio.wait(doing)

    def stop(self) -> None:
        """Begin no further attempt. Those under way go on."""
        if self._turn is not None:
            self._turn.cancel()

    def given_up(self, session: Session) -> bool:
        """Return whether a session that cannot sleep has been kept as long as it could have slept."""
        return (
            self._last_refusal(session) is not None
            and session.idle_for() >= session.spec.idle_timeout + self._sleep_for
        )

    def _last_refusal(self, session: Session) -> _Refusal | None:
        """Return the last failed attempt, unless the session was used since."""
        refusal = self._refused.get(session)
        used = session.age() - session.idle_for()
        return refusal if refusal is not None and used < refusal.used + 1.0 else None

    def _may_try(self, session: Session) -> bool:
        """Return whether a session has not failed, or long enough ago."""
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
        """Return the session whose turn comes next: of the tenant whose last turn is the longest ago."""
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
        failure = await session.fall_asleep()
        if not failure:
            self._refused.pop(session, None)
            self._on_sleep(True)  # noqa: FBT003 - a callback has no names
            log.info("session sleeps", tenant=session.key.tenant, session=session.key.name)
        elif not session.closed and not session.in_use:
            self._refused[session] = _Refusal(used, pause, idle + pause)
            self._on_sleep(False)  # noqa: FBT003 - as above
            log.warning("a session cannot sleep", session=str(session.key), reason=failure, again_after=pause)
