"""What several dialects write in their answers: times, and failures in one field."""

from __future__ import annotations

from datetime import UTC, datetime

from sessions.model.errors import SessionError

#: seconds from 1970 to the year 10000, which `datetime` cannot represent
YEAR_10000 = 253_402_300_800


def time_of(seconds: float, timespec: str = "seconds") -> str:
    """Return a time in the form of RFC 3339.

    Args:
        seconds: since 1970.
        timespec: precision, as in `datetime.isoformat`.
    """
    # The time of a file may be any number, because code in the sandbox can set it.
    seconds = min(max(seconds, 0), YEAR_10000 - 1)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def sentences(failure: SessionError) -> str:
    """Return the message and the resolution of a failure, for clients that have one field for both."""
    return f"{failure.message.rstrip('.')}. {failure.resolution}"
