"""A resource that all tenants share, such that no tenant can take all of it. Pure: no event loop, no clock.

A tenant may have a fixed part of what the other tenants leave. So the first tenant leaves something for the second,
both leave something for the third, and so on. A new tenant always finds some room.
"""

from __future__ import annotations

import sys
from collections import Counter

#: stands in place of a tenant for work and memory that belong to no tenant; every tenant has priority over it
NOBODY = ""
#: the share of a tenant if there is no limit
UNBOUNDED = sys.maxsize


class Shares:
    """The amount of one resource that each tenant has, in bytes or pieces."""

    def __init__(self, most: int = 0, share: float = 1.0, least: int = 0) -> None:
        """Begin with nothing in use.

        Args:
            most: amount that all tenants together may have. 0 means no limit.
            share: part, from 0 to 1, that one tenant may have of what the other tenants leave.
            least: smallest share of a tenant. Without it, the share of whole pieces could be rounded down to 0.
        """
        self.most = most
        self._share = share
        self._least = least
        self._had: Counter[str] = Counter()
        #: amount in use by all tenants
        self.used = 0

    def limit_to(self, most: int) -> None:
        """Change the amount that all tenants together may have. 0 means no limit."""
        self.most = most

    def of(self, tenant: str) -> int:
        """Return the amount that a tenant has."""
        return self._had[tenant]

    def by_tenant(self) -> dict[str, int]:
        """Return the amount of each tenant that has some."""
        return {tenant: amount for tenant, amount in self._had.items() if tenant != NOBODY}

    def fits(self, more: int) -> bool:
        """Return whether the limit of all tenants allows `more`."""
        return not self.most or self.used + more <= self.most

    def share_of(self, tenant: str) -> int:
        """Return the amount that a tenant may have in all, by its share. `UNBOUNDED` means no limit.

        The amount of `NOBODY` does not reduce the share, because every tenant has priority over it.
        """
        if not self.most:
            return UNBOUNDED
        others = self.used - self._had[tenant] - self._had[NOBODY]
        return max(self._least, int(self._share * (self.most - others)))

    def fits_share(self, tenant: str, more: int) -> bool:
        """Return whether a tenant's share allows `more`."""
        if self._share == 1 or tenant == NOBODY:  # then only the limit of all tenants counts
            return True
        return self._had[tenant] + more <= self.share_of(tenant)

    def allows(self, tenant: str, more: int) -> bool:
        """Return whether both a tenant's share and the limit of all tenants allow `more`."""
        return self.fits(more) and self.fits_share(tenant, more)

    def add(self, tenant: str, count: int) -> None:
        """Add to a tenant's amount, even if the limits are exceeded. A negative `count` subtracts."""
        self.used += count
        self._had[tenant] += count
        if not self._had[tenant]:
            del self._had[tenant]
