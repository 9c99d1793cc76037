"""A circuit breaker, which stops requests to an engine that does not answer.

Each request to such an engine would wait for its timeout, and occupy a thread meanwhile. After a few failures in a row,
the breaker opens and refuses every call. It closes after a proof that containers can be started again. It counts only
calls that no tenant can make slow, or one tenant could lock out all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import structlog
from docker.errors import APIError

from sessions.backends.base import no_op
from sessions.model.errors import BackendUnavailable

log = structlog.get_logger()

#: failures in a row after which the breaker opens
FAILURES = 3
#: maximum characters of a cause
_CAUSE_MAX = 200
#: pattern of the ids of containers
_IDS = re.compile("[0-9a-f]{12,}")
#: seconds after which clients should retry, because a proof is tried every few seconds
RETRY_AFTER = 5


def unavailable(message: str = "") -> BackendUnavailable:
    """Return the error for an engine that does not answer, with the seconds until a retry."""
    return BackendUnavailable(message, retry_after=RETRY_AFTER)


def log_refusal(what: str, error: APIError) -> None:
    """Log the engine's own words. They may name paths of the host, so clients do not get them.

    Args:
        what: what the engine could not do.
        error: the engine's answer.
    """
    log.warning("the engine refused or failed", what=what, reason=explained(error))


def explained(error: APIError) -> str:
    """Return the engine's own words, for operators."""
    return str(error.explanation or error)[:300]


def short_cause(error: APIError) -> str:
    """Return the engine's own words in one line, without paths of the host and ids, so that clients may see them."""
    words = str(error.explanation or "it does not say why").split()
    return " ".join("..." if "/" in word else _IDS.sub("...", word) for word in words)[:_CAUSE_MAX]


def engine_failed(what: str, error: APIError) -> BackendUnavailable:
    """Log the engine's own words, and return the error for clients."""
    log_refusal(what, error)
    return unavailable("the container engine fails")


class Breaker:
    """Counts failed calls. Only the event loop may call its methods; other threads may read `open`."""

    def __init__(self, on_open: Callable[[], None] = no_op) -> None:
        """Begin closed.

        Args:
            on_open: called when the breaker opens.
        """
        self.open = False
        self._on_open = on_open
        self._failures = 0

    def require(self) -> None:
        """Check that the breaker is closed.

        Raises:
            BackendUnavailable: when the breaker is open.
        """
        if self.open:
            raise unavailable()

    def failed(self) -> None:
        """Record a call that the engine did not answer."""
        self._failures += 1
        if self._failures >= FAILURES and not self.open:
            self.open = True
            log.warning("the engine does not answer; no container is started for now", failures=self._failures)
            self._on_open()

    def answered(self) -> None:
        """Record an answer. An open breaker stays open, because the call may have begun before it opened."""
        if not self.open:
            self._failures = 0

    def close(self) -> None:
        """Close the breaker. Call this after a proof that containers can be started."""
        if self.open:
            log.info("the engine answers again")
        self.open = False
        self._failures = 0
