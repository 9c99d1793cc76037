"""Filters and pages of the list of sandboxes. A page begins after a certain sandbox, so it skips or repeats none.

That also holds if sandboxes are created or ended between two requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote

from kernel_gateway.dialects.e2b.models import state_of
from sessions.model.errors import InvalidRequest
from sessions.sandbox.sandbox import Sandbox

PAGE_MAX = 100
#: maximum pairs of metadata in a filter
_PAIRS_MAX = 100
_TOKEN = re.compile(r"([0-9]{1,12}\.[0-9]{1,9})-([a-z2-7]{20})")

#: place of a sandbox in the list: its creation in seconds since 1970, and its id
Place = tuple[float, str]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filter and the page that a client asks for."""

    #: pairs of metadata that a sandbox must have
    metadata: dict[str, str]
    #: wanted states; an empty set means all states
    states: frozenset[str]
    #: wanted template; an empty text means all templates
    template: str
    #: only sandboxes that were created then or later, in seconds since 1970
    since: float
    #: place of the last sandbox on the page before; None for the first page
    after: Place | None
    #: True for newest first
    descending: bool
    #: maximum sandboxes of the page
    limit: int

    @classmethod
    def of(cls, query: dict[str, str]) -> ListQuery:
        """Parse the query of a request.

        Raises:
            InvalidRequest: when a value is not valid.
        """
        return cls(
            metadata=_metadata(query.get("metadata", "")),
            states=frozenset(filter(None, query.get("state", "").split(","))),
            template=query.get("template", ""),
            since=_seconds(query.get("startedAfter", "")),
            after=_place(query.get("nextToken", "")),
            descending=query.get("order") != "asc",
            limit=_limit(query.get("limit", "")),
        )

    def page(self, sandboxes: list[Sandbox]) -> tuple[list[Sandbox], str | None]:
        """Return a page of these sandboxes, and the token of the next page, or None if this is the last page."""
        found = sorted(filter(self._has, sandboxes), key=place_of, reverse=self.descending)
        last = place_of(found[self.limit - 1]) if len(found) > self.limit else None
        return found[: self.limit], last and f"{last[0]:.6f}-{last[1]}"

    def _has(self, sandbox: Sandbox) -> bool:
        place = place_of(sandbox)
        if self.after is not None and not (place < self.after if self.descending else place > self.after):
            return False
        return (
            (not self.states or state_of(sandbox) in self.states)
            and self.template in {"", sandbox.spec.template}
            and place[0] >= self.since  # the time that a client was told includes its sandbox
            and self.metadata.items() <= dict(sandbox.spec.metadata).items()
        )


def place_of(sandbox: Sandbox) -> Place:
    """Return the place of a sandbox in the list."""
    return round(sandbox.created_at, 6), sandbox.key.name


def _metadata(text: str) -> dict[str, str]:
    """Parse pairs that the client has encoded twice. One encoding was already decoded with the rest of the query."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_PAIRS_MAX)
    except ValueError:
        raise InvalidRequest(f"metadata may have at most {_PAIRS_MAX} pairs", field="metadata") from None
    return {unquote(name): unquote(value) for name, value in pairs}


def _seconds(time: str) -> float:
    if not time:
        return 0.0
    try:
        asked = datetime.fromisoformat(time)
        return (asked if asked.tzinfo else asked.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest("startedAfter must be a time of RFC 3339", field="startedAfter") from None


def _place(token: str) -> Place | None:
    if not token:
        return None
    if (found := _TOKEN.fullmatch(token)) is None:
        raise InvalidRequest("nextToken is none of this list", field="nextToken")
    return float(found[1]), found[2]


def _limit(value: str) -> int:
    if not re.fullmatch("[0-9]{0,9}", value) or value.strip("0") == "" != value:
        raise InvalidRequest("limit must be a number from 1 on", field="limit")
    return min(int(value or PAGE_MAX), PAGE_MAX)
