"""Whether a kernel is still there, and how much it has sent that is no whole message: looked at from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from sessions.backlog import Backlog
from sessions.tasks import going_on

log = structlog.get_logger()

#: seconds between two looks; the second when a kernel has sent much that is no whole message
INTERVAL = 0.25
INTERVAL_FILLING = 0.025
#: bytes that are much
FILLING = 1024**2
#: seconds until a kernel that was connected, and is not any more, is given up
AWAY_MAX = 8.0


class Vigil:
    """Over one connection."""

    def __init__(
        self,
        backlogs: Mapping[str, Backlog],
        most: int,
        drains: Callable[[str], bool],
        on_broken: Callable[[], None],
        on_away: Callable[[], None],
    ) -> None:
        """Begin to look.

        Args:
            backlogs: what the channels have received, by their names.
            most: bytes of it that may be no whole message.
            drains: whether a channel has whole messages, which are then read.
            on_broken: called when it is more; then nobody looks any more.
            on_away: called when the kernel cannot be reached any more; the same.
        """
        self._backlogs = backlogs
        self._most = most
        self._drains = drains
        self._on_broken = on_broken
        self._on_away = on_away
        #: channels whose connection has ended, and for how many seconds we have looked and it was not there again
        self._away: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(INTERVAL, self._look, INTERVAL)

    def lost(self, channel: str) -> None:
        """A channel's connection has ended."""
        self._away[channel] = 0.0

    def back(self, channel: str) -> None:
        """It is there again."""
        self._away.pop(channel, None)

    def close(self) -> None:
        """Look no more."""
        self._next.cancel()

    def _look(self, waited: float) -> None:
        again: float | None = INTERVAL
        with going_on("vigil over a kernel"):
            again = self._seen(waited)
        if again is not None:
            self._next = self._loop.call_later(again, self._look, again)

    def _seen(self, waited: float) -> float | None:
        """Look once.

        Returns:
            seconds to the next look; None: there is none.
        """
        # What was to be waited counts, not what the clock says: a gateway that stood still has not looked.
        self._away = {channel: away + waited for channel, away in self._away.items()}
        if max(self._away.values(), default=0.0) > AWAY_MAX:
            log.warning("a kernel cannot be reached any more", channels=sorted(self._away))
            self._on_away()
            return None
        interval = INTERVAL
        for channel, backlog in self._backlogs.items():
            if self._drains(channel):
                continue
            size = backlog.size()
            if size > self._most:
                log.warning("a kernel sends a message without end", channel=channel, bytes=size)
                self._on_broken()
                return None
            if size > FILLING:
                interval = INTERVAL_FILLING
        return interval
