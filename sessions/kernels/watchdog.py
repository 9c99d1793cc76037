"""Checks at intervals whether a kernel can be reached, and how many bytes it has sent without a complete message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from sessions.kernels.backlog import Backlog
from sessions.model.tasks import log_failure

log = structlog.get_logger()

#: seconds between two checks; the second value applies after `FILLING` bytes without a complete message
INTERVAL = 0.25
INTERVAL_FILLING = 0.025
FILLING = 1024**2
#: seconds without a connection after which the kernel counts as unreachable
AWAY_MAX = 8.0


class Watchdog:
    """Watches one connection."""

    def __init__(
        self,
        backlogs: Mapping[str, Backlog],
        most: int,
        *,
        has_messages: Callable[[str], bool],
        on_broken: Callable[[], None],
        on_away: Callable[[], None],
    ) -> None:
        """Keep the arguments. `start` begins the checks.

        Args:
            backlogs: backlog of each channel.
            most: maximum bytes that a kernel may send without a complete message.
            has_messages: returns whether a channel has complete messages, and schedules that they are read.
            on_broken: called when there are more bytes than `most`. Then there are no more checks.
            on_away: called when the kernel could not be reached for `AWAY_MAX` seconds. Then there are no more checks.
        """
        self._backlogs = backlogs
        self._most = most
        self._has_messages = has_messages
        self._on_broken = on_broken
        self._on_away = on_away
        #: channels without a connection, and the seconds for which checks have found none
        self._away: dict[str, float] = {}
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin the checks."""
        self._check_in(INTERVAL)

    def _check_in(self, seconds: float) -> None:
        self._next = asyncio.get_running_loop().call_later(seconds, self._check, seconds)

    def disconnected(self, channel: str) -> None:
        """Record that a channel's connection has ended."""
        self._away[channel] = 0.0

    def reconnected(self, channel: str) -> None:
        """Record that a channel is connected again."""
        self._away.pop(channel, None)

    def close(self) -> None:
        """Stop the checks."""
        if self._next is not None:
            self._next.cancel()

    def _check(self, waited: float) -> None:
        pause: float | None = INTERVAL
        with log_failure("watchdog of a kernel"):
            pause = self._checked(waited)
        if pause is not None:
            self._check_in(pause)

    def _checked(self, waited: float) -> float | None:
        """Check once.

        Returns:
            seconds until the next check. None means that this was the last check.
        """
        # The planned pauses are added, and not the clock's time, because a stopped gateway has not checked meanwhile.
        self._away = {channel: away + waited for channel, away in self._away.items()}
        if max(self._away.values(), default=0.0) > AWAY_MAX:
            log.warning("a kernel cannot be reached any more", channels=sorted(self._away))
            self._on_away()
            return None
        interval = INTERVAL
        for channel, backlog in self._backlogs.items():
            if self._has_messages(channel):
                continue
            size = backlog.size()
            if size > self._most:
                log.warning("a kernel sends a message without end", channel=channel, bytes=size)
                self._on_broken()
                return None
            if size > FILLING:
                interval = INTERVAL_FILLING
        return interval
