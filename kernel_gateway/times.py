"""Times as clients, operators and logs read and write them, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sessions.model.errors import InvalidRequest

#: seconds from 1970 to the year 10000, which `datetime` cannot represent
YEAR_10000 = 253_402_300_800


def moment(seconds: float) -> datetime:
    """Return the time so many seconds after 1970. A time before 1970 or after the year 9999 becomes the nearest one."""
    # Code in the sandbox can set the time of a file to any number.
    return datetime.fromtimestamp(min(max(seconds, 0), YEAR_10000 - 1), UTC)


def rfc3339(seconds: float, timespec: str = "seconds") -> str:
    """Return a time in the format of RFC 3339.

    Args:
        seconds: seconds since 1970, as for `moment`.
        timespec: precision, as in `datetime.isoformat`.
    """
    return moment(seconds).isoformat(timespec=timespec).replace("+00:00", "Z")


def seconds_of(name: str, text: str) -> float:
    """Return the time that a client or operator has written, in seconds since 1970.

    Args:
        name: name of the parameter, for the error.
        text: a time or a date as in ISO 8601, or seconds since 1970. A date is its first moment. A time without an
            offset is in UTC.

    Raises:
        InvalidRequest: when the text is no such time.
    """
    try:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text, re.ASCII):
            return datetime.fromtimestamp(float(text), UTC).timestamp()
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        what = "a date or a time as in ISO 8601, for example 2026-01-31 or 2026-01-31T09:30:00Z"
        raise InvalidRequest(f"{name} must be {what}, or seconds since 1970", field=name) from None
