"""Idle sessions fall asleep one after the other; one that cannot tries again, ever more rarely.

One at a time, because each takes the memory of a second kernel, and a processor. It takes seconds, for which the
sessions that must end do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import structlog

from sessions.session import Session
from sessions.tasks import log_failure, spawn

log = structlog.get_logger()

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
        self._turn: asyncio.Task[None] | None = None

    def begin(self, sessions: Sequence[Session], may_sleep: Callable[[Session], bool]) -> None:
        """Let sessions sleep in the background, unless the earlier ones are not done yet.

        Args:
            sessions: sessions to let sleep.
            may_sleep: whether a session may still do so when its turn comes.
        """
        if sessions and (self._turn is None or self._turn.done()):
            self._turn = spawn(self._each(sessions, may_sleep), "sleep of idle sessions")

    async def over(self) -> None:
        """Wait until no session falls asleep."""
        if self._turn is not None:
            await asyncio.wait({self._turn})

    def stop(self) -> None:
        """Begin no further attempt. The present one goes on."""
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

    async def _each(self, sessions: Sequence[Session], may_sleep: Callable[[Session], bool]) -> None:
        for session in sessions:
            if may_sleep(session):
                with log_failure(f"sleep of {session.key}"):
                    await self._attempt(session)

    async def _attempt(self, session: Session) -> None:
        idle, before = session.idle_for(), self._last_refusal(session)
        if before is not None and idle < before.again:
            return
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
