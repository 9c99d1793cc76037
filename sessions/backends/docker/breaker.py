"""Stops asking an engine that does not answer.

Who waits for such an engine waits long and in vain, and holds a thread meanwhile. After a few failures in a row
nobody is let through any more; it closes when somebody has proven that containers can be started again. Only calls
are counted that no tenant can make slow, or one tenant could keep all others out.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from sessions.backends.base import nobody_cares
from sessions.errors import BackendUnavailable

log = structlog.get_logger()

#: failures in a row after which nobody is let through
FAILURES = 3
#: seconds after which it is worth asking again: a proof is made every few seconds
RETRY_AFTER = 5


def unavailable(message: str = "") -> BackendUnavailable:
    """The failure that tells of it, with the time to try again."""
    return BackendUnavailable(message, retry_after=RETRY_AFTER)


class Breaker:
    """Counts how calls end. Belongs to the event loop; other threads may look at `open`."""

    def __init__(self) -> None:
        self.open = False
        #: called when it opens
        self.on_open: Callable[[], None] = nobody_cares
        self._failures = 0

    def require(self) -> None:
        """Go on only while it is closed.

        Raises:
            BackendUnavailable: it is open.
        """
        if self.open:
            raise unavailable()

    def failed(self) -> None:
        """The engine did not answer."""
        self._failures += 1
        if self._failures >= FAILURES and not self.open:
            self.open = True
            log.warning("the engine does not answer; no container is started for now", failures=self._failures)
            self.on_open()

    def answered(self) -> None:
        """It did. Calls that began before it opened may still end well, which does not close it."""
        if not self.open:
            self._failures = 0

    def close(self) -> None:
        """Containers can be started: it was tried."""
        if self.open:
            log.info("the engine answers again")
        self.open = False
        self._failures = 0
