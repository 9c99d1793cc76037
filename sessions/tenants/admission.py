"""Decides which work may begin now, and which work waits. Pure: no event loop, no clock.

Work means executions, starts of kernels, or calls to the engine; each kind has an `Admission` of its own. Each tenant
has a queue. Work waits there while its tenant is at its limit, or while nothing more may run. When work ends, the next
queue in turn may begin its first piece, not the longest queue. So a flood of one tenant delays only that tenant.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from sessions.tenants.shares import NOBODY, Shares


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in a tenant's queue."""

    tenant: str
    #: called when the ticket is admitted
    wake: Callable[[], None]
    admitted: bool = False


class Admission:
    """The work of one kind that runs, and the queues of the work that waits."""

    def __init__(self, per_tenant: int, in_all: int, share: float = 1.0) -> None:
        """Start without any work.

        Args:
            per_tenant: maximum pieces of work of one tenant at a time.
            in_all: maximum pieces of work of all tenants at a time.
            share: part, from 0 to 1, that one tenant may have of what the other tenants leave. Work that ends soon
                needs no share, because tenants take turns.
        """
        self._per_tenant = per_tenant
        self._running = Shares(in_all, share, least=1)
        #: queues by tenant, in the order of their turns
        self._queues: OrderedDict[str, deque[Ticket]] = OrderedDict()

    @property
    def running(self) -> int:
        """Number of pieces of work that run."""
        return self._running.used

    @property
    def waiting(self) -> int:
        """Number of waiting pieces of work of all tenants."""
        return sum(map(len, self._queues.values()))

    def queued(self, tenant: str) -> int:
        """Return how much work of a tenant waits."""
        return len(self._queues.get(tenant, ()))

    def under_way(self, tenant: str) -> int:
        """Return how much work of a tenant runs."""
        return self._running.of(tenant)

    def full(self, tenant: str) -> bool:
        """Return whether the tenant has reached its own limit, or its share."""
        return self.under_way(tenant) >= self._per_tenant or not self._running.fits_share(tenant, 1)

    def enter(self, tenant: str) -> bool:
        """Begin at once, if possible. This overtakes no waiting work, because that work could not begin now either.

        Returns:
            whether the work has begun. If it has, the caller must call `leave` at its end.
        """
        if not self._running.fits(1) or self.full(tenant):
            return False
        self._running.add(tenant, 1)
        return True

    def wait(self, tenant: str, wake: Callable[[], None]) -> Ticket:
        """Add work to the end of its tenant's queue.

        Args:
            tenant: tenant of the work. `NOBODY` means that no tenant waits for it.
            wake: called when the work is admitted. At the end of the work, the caller must call `leave`.
        """
        ticket = Ticket(tenant, wake)
        self._queues.setdefault(tenant, deque()).append(ticket)
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Give up a ticket. If it was admitted, this is the end of its work."""
        if ticket.admitted:
            self.leave(ticket.tenant)
            return
        queue = self._queues[ticket.tenant]
        queue.remove(ticket)
        if not queue:
            del self._queues[ticket.tenant]

    def leave(self, tenant: str) -> None:
        """Record the end of work, and admit the waiting work that can begin now."""
        self._running.add(tenant, -1)
        while self._running.fits(1) and (following := self._next()) is not None:
            following.admitted = True
            self._running.add(following.tenant, 1)
            following.wake()

    def _next(self) -> Ticket | None:
        ready = [tenant for tenant in self._queues if not self.full(tenant)]
        if not ready:
            return None
        tenant = next((tenant for tenant in ready if tenant != NOBODY), NOBODY)
        queue = self._queues.pop(tenant)
        ticket = queue.popleft()
        if queue:
            self._queues[tenant] = queue  # behind all other tenants
        return ticket
