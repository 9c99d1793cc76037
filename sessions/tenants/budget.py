"""A budget that all tenants share, and the places that its bytes are for. Pure: no event loop, no clock."""

from __future__ import annotations

from collections import Counter

from sessions.tenants.shares import Shares


class Budget(Shares):
    """What tenants have of one thing, in bytes, each part of it with the place that it is for."""

    def __init__(self, most: int = 0, share: float = 1.0) -> None:
        """Begin with nothing in use; see `Shares`."""
        super().__init__(most, share)
        self._sizes: dict[str, int] = {}
        self._tenants: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    def size(self, place: str) -> int:
        """Return the bytes of one place; 0: nothing holds it."""
        return self._sizes.get(place, 0)

    def hold(self, place: str, tenant: str, size: int) -> None:
        """Count bytes, also beyond the limits. Then `release` must follow.

        Args:
            place: what they are for. All that hold one place have it together, with the largest of their sizes.
            tenant: tenant that has them; NOBODY: none yet.
            size: bytes.
        """
        self._forget(place)
        self._keep(place, tenant, max(size, self._sizes.get(place, 0)))
        self._holders[place] += 1

    def hand_over(self, place: str, tenant: str) -> None:
        """Count what a place holds for another tenant from now on, if anything still holds it."""
        if place in self._tenants:
            self._forget(place)
            self._keep(place, tenant, self._sizes[place])

    def release(self, place: str) -> None:
        """Record that one of the holders of a place is gone."""
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
