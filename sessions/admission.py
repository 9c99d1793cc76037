"""Who may run now, and who waits. Pure: no loop, no clock.

A tenant that has as many executions as it may waits in a line of its own, and so do all while the gateway is full.
Whoever leaves makes room for the next line in turn, not for the longest: a flood of one tenant holds up only itself.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Place:
    """A place in a tenant's line."""

    tenant: str
    #: called when it is its turn
    wake: Callable[[], None]
    admitted: bool = False


class Admission:
    """The executions under way, and the lines of those that wait."""

    def __init__(self, per_tenant: int, in_all: int) -> None:
        """Begin empty.

        Args:
            per_tenant: executions of one tenant at a time.
            in_all: executions of all tenants at a time.
        """
        self._per_tenant = per_tenant
        self._in_all = in_all
        self._running: Counter[str] = Counter()
        #: by tenant; whose turn is next comes first
        self._lines: OrderedDict[str, deque[Place]] = OrderedDict()
        #: executions under way
        self.running = 0

    @property
    def waiting(self) -> int:
        """How many wait, of all tenants."""
        return sum(map(len, self._lines.values()))

    def queued(self, tenant: str) -> int:
        """How many of a tenant wait."""
        return len(self._lines.get(tenant, ()))

    def under_way(self, tenant: str) -> int:
        """How many of a tenant run."""
        return self._running[tenant]

    def full(self, tenant: str) -> bool:
        """Whether it is the tenant that has as many as it may, and not all together."""
        return self._running[tenant] >= self._per_tenant

    def enter(self, tenant: str) -> bool:
        """Begin at once, if that is possible. Nobody is overtaken: who waits could not have begun either.

        Returns:
            whether it was; then `leave` must follow.
        """
        if self.running >= self._in_all or self.full(tenant):
            return False
        self._begin(tenant)
        return True

    def wait(self, tenant: str, wake: Callable[[], None]) -> Place:
        """Stand in line, at its end.

        Args:
            tenant: whose line.
            wake: called when the place is admitted; then `leave` must follow.
        """
        place = Place(tenant, wake)
        self._lines.setdefault(tenant, deque()).append(place)
        return place

    def withdraw(self, place: Place) -> None:
        """Give up a place, whether its turn has come or not."""
        if place.admitted:
            self.leave(place.tenant)
            return
        line = self._lines[place.tenant]
        line.remove(place)
        if not line:
            del self._lines[place.tenant]

    def leave(self, tenant: str) -> None:
        """An execution has ended: who can begin now does."""
        self.running -= 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        while self.running < self._in_all and (following := self._next()) is not None:
            following.admitted = True
            self._begin(following.tenant)
            following.wake()

    def _begin(self, tenant: str) -> None:
        self.running += 1
        self._running[tenant] += 1

    def _next(self) -> Place | None:
        tenant = next((tenant for tenant in self._lines if not self.full(tenant)), None)
        if tenant is None:
            return None
        line = self._lines.pop(tenant)
        place = line.popleft()
        if line:
            self._lines[tenant] = line  # behind all others
        return place
