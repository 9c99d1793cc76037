"""Formats that several dialects use: the text of a failure."""

from __future__ import annotations

from sessions.model.errors import SessionError


def failure_text(failure: SessionError) -> str:
    """Return the message and the resolution of a failure as one text, for clients with only one field."""
    return f"{failure.message.rstrip('.')}. {failure.resolution}"
