"""A budget of bytes that all tenants share, divided into places. Pure: no event loop, no clock.

A *place* is what some bytes are for, such as one kernel or one file. Several holders can share a place.
"""

from __future__ import annotations

from collections import Counter

from sessions.tenants.shares import Shares


class Budget(Shares):
    """The bytes that each place takes, counted for the tenant that has the place."""

    def __init__(self, most: int = 0, share: float = 1.0) -> None:
        """Begin without places. The arguments are those of `Shares`."""
        super().__init__(most, share)
        self._sizes: dict[str, int] = {}
        self._tenants: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    def size(self, place: str) -> int:
        """Return the bytes of one place, or 0 if nobody holds it."""
        return self._sizes.get(place, 0)

    def hold(self, place: str, tenant: str, size: int) -> None:
        """Count a holder of a place, even if the limits are exceeded. The caller must call `release` later.

        Args:
            place: name of the place. If it has several holders, the largest of their sizes counts, once.
            tenant: tenant that has the place. NOBODY means no tenant yet.
            size: bytes of the place.
        """
        self._forget(place)
        self._keep(place, tenant, max(size, self._sizes.get(place, 0)))
        self._holders[place] += 1

    def grow(self, place: str, size: int) -> None:
        """Count at least `size` bytes for a place that somebody holds, even if the limits are exceeded."""
        tenant = self._tenants[place]
        self._forget(place)
        self._keep(place, tenant, max(size, self._sizes[place]))

    def hand_over(self, place: str, tenant: str) -> None:
        """Count the bytes of a place for another tenant from now on, if somebody still holds the place."""
        if place in self._tenants:
            self._forget(place)
            self._keep(place, tenant, self._sizes[place])

    def release(self, place: str) -> None:
        """Remove one holder of a place. With the last holder, its bytes are free again."""
        self._holders[place] -= 1
        if not self._holders[place]:
            self._forget(place)
            del self._holders[place], self._sizes[place], self._tenants[place]

    def _keep(self, place: str, tenant: str, size: int) -> None:
        self._sizes[place], self._tenants[place] = size, tenant
        self.add(tenant, size)

    def _forget(self, place: str) -> None:
        if place in self._tenants:
            self.add(self._tenants[place], -self._sizes[place])
