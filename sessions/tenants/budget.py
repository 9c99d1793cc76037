"""A budget that all tenants share, of which no tenant can use up what others need. Pure: no event loop, no clock.

A tenant may have a part of what the other tenants leave. So the first one leaves something for the second, both for
the third, and so on: whoever comes finds room, however much those before want.
"""

from __future__ import annotations

from collections import Counter

from sessions.tenants.admission import NOBODY


class Budget:
    """What tenants have of one thing, in bytes."""

    def __init__(self, most: int = 0, share: float = 1.0) -> None:
        """Begin with nothing in use.

        Args:
            most: bytes that all tenants together may have; 0: no limit.
            share: part of what other tenants leave that one tenant may have; 1: all of it.
        """
        self.most = most
        self._share = share
        self._sizes: dict[str, int] = {}
        self._tenants: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return sum(self._sizes.values())

    def size(self, place: str) -> int:
        """Return the bytes of one place; 0: nothing holds it."""
        return self._sizes.get(place, 0)

    def fits(self, more: int) -> bool:
        """Return whether all tenants together may have so many bytes more."""
        return not self.most or self.used + more <= self.most

    def fits_share(self, tenant: str, more: int) -> bool:
        """Return whether one tenant may have so many bytes more, as far as its share goes.

        What `NOBODY` has takes nothing from it, because that gives way.
        """
        if not self.most or self._share == 1 or tenant == NOBODY:
            return True
        own = self._of(tenant)
        others = self.used - own - self._of(NOBODY)
        return own + more <= self._share * (self.most - others)

    def _of(self, tenant: str) -> int:
        return sum(size for place, size in self._sizes.items() if self._tenants[place] == tenant)

    def hold(self, place: str, tenant: str, size: int) -> None:
        """Count bytes, also beyond the limits. Then `release` must follow.

        Args:
            place: what they are for. All that hold one place have it together, with the largest of their sizes.
            tenant: tenant that has them; NOBODY: none yet.
            size: bytes.
        """
        self._sizes[place] = max(size, self._sizes.get(place, 0))
        self._tenants[place] = tenant
        self._holders[place] += 1

    def hand_over(self, place: str, tenant: str) -> None:
        """Count what a place holds for another tenant from now on, if anything still holds it."""
        if place in self._tenants:
            self._tenants[place] = tenant

    def release(self, place: str) -> None:
        """Record that one of the holders of a place is gone."""
        self._holders[place] -= 1
        if not self._holders[place]:
            del self._holders[place], self._sizes[place], self._tenants[place]
