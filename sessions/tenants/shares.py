"""Something that all tenants share, of which no tenant can use up what others need. Pure: no event loop, no clock.

A tenant may have a part of what the other tenants leave. So the first one leaves something for the second, both for
the third, and so on: whoever comes finds room, however much those before want.
"""

from __future__ import annotations

import sys
from collections import Counter

#: tenant of what no tenant has or waits for; it gives way to all tenants
NOBODY = ""
#: as much as a tenant may have where nothing is bounded
UNBOUNDED = sys.maxsize


class Shares:
    """What tenants have of one thing, in bytes or pieces."""

    def __init__(self, most: int = 0, share: float = 1.0, least: int = 0) -> None:
        """Begin with nothing in use.

        Args:
            most: as much as all tenants together may have; 0: no limit.
            share: part of what other tenants leave that one tenant may have; 1: all of it.
            least: as much as is a tenant's share however small that part is, if it is there. A part of a piece is none.
        """
        self.most = most
        self._share = share
        self._least = least
        self._had: Counter[str] = Counter()
        #: as much as is in use
        self.used = 0

    def of(self, tenant: str) -> int:
        """Return as much as a tenant has."""
        return self._had[tenant]

    def fits(self, more: int) -> bool:
        """Return whether all tenants together may have so much more."""
        return not self.most or self.used + more <= self.most

    def share_of(self, tenant: str) -> int:
        """Return as much as a tenant may have by its share, with what it has.

        What `NOBODY` has takes nothing from it, because that gives way. UNBOUNDED: there is no limit.
        """
        if not self.most:
            return UNBOUNDED
        others = self.used - self._had[tenant] - self._had[NOBODY]
        return max(self._least, int(self._share * (self.most - others)))

    def fits_share(self, tenant: str, more: int) -> bool:
        """Return whether one tenant may have so much more, as far as its share goes."""
        if self._share == 1 or tenant == NOBODY:  # then only the limit of all tenants counts
            return True
        return self._had[tenant] + more <= self.share_of(tenant)

    def allows(self, tenant: str, more: int) -> bool:
        """Return whether a tenant may have so much more, as far as its share and the limit of all tenants go."""
        return self.fits(more) and self.fits_share(tenant, more)

    def add(self, tenant: str, count: int) -> None:
        """Count more, also beyond the limits, or less if `count` is below 0."""
        self.used += count
        self._had[tenant] += count
        if not self._had[tenant]:
            del self._had[tenant]
