"""Formats that several dialects use in their answers: times, and the text of a failure."""

from __future__ import annotations

from datetime import UTC, datetime

from sessions.model.errors import SessionError

#: seconds from 1970 to the year 10000, which `datetime` cannot represent
YEAR_10000 = 253_402_300_800


def rfc3339(seconds: float, timespec: str = "seconds") -> str:
    """Return a time in the format of RFC 3339, in UTC.

    Args:
        seconds: seconds since 1970. A time before 1970 or after the year 9999 becomes the nearest valid time.
        timespec: precision, as in `datetime.isoformat`.
    """
    # Code in the sandbox can set the time of a file to any number.
    seconds = min(max(seconds, 0), YEAR_10000 - 1)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def failure_text(failure: SessionError) -> str:
    """Return the message and the resolution of a failure as one text, for clients with only one field."""
    return f"{failure.message.rstrip('.')}. {failure.resolution}"
