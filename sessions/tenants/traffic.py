"""Messages of kernels and of WebSockets, and requests: what each tenant's take of the event loop.

All of them can come as fast as the gateway can read them. To read them all would take the gateway a processor, and the
other tenants' kernels and requests would wait for it. So the gateway reads a tenant's kernels and WebSockets more
slowly, and begins its requests later, if they are very many while other tenants use the loop as well. Nothing is lost
or refused: its sender waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: part of the loop's time that one tenant's messages and requests may take while other tenants use the loop
SHARE = 0.25
#: seconds of the loop's time that a tenant's messages may take at once after a quiet time, and seconds beyond, after
#: which no more are read until their share has grown again
BURST, DEBT = 0.5, 0.05
#: seconds since its last message after which a tenant no longer counts as one that uses the loop
RECENT = 1.0


@dataclass(frozen=True, slots=True)
class Charge:
    """What a kernel's tenant is charged with."""

    #: counts bytes more that wait for the kernel, or fewer; returns False if the tenant would then have too many
    hold: Callable[[int], bool]
    #: counts seconds of the event loop that the kernel's messages have taken
    spend: Callable[[float], None]
    #: returns the seconds for which the kernel should not be read, because it has taken too many; 0: read it now
    wait: Callable[[], float]


#: for a kernel that nobody has yet
NO_CHARGE = Charge(lambda _count: True, lambda _seconds: None, lambda: 0.0)


@dataclass(slots=True)
class _Account:
    #: seconds of the loop's time that the tenant's messages may still take; below 0: they must wait
    left: float
    #: when that was so
    at: float


class LoopTime:
    """Counts the loop's time by tenant, and says who has to wait. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without tenants.

        Args:
            clock: returns the time in seconds, from any beginning.
        """
        self._clock = clock
        #: by tenant; the tenant whose message was read last is at the end
        self._accounts: dict[str, _Account] = {}

    def spend(self, tenant: str, seconds: float) -> None:
        """Count time that the loop has needed for messages of a tenant's kernels or WebSockets, or for its requests."""
        now = self._clock()
        account = self._accounts.pop(tenant, None) or _Account(BURST, now)
        account.left = max(-DEBT, self._grown(account, now) - seconds)
        account.at = now
        self._accounts[tenant] = account
        oldest = next(iter(self._accounts))
        if self._accounts[oldest].at < now - BURST / SHARE - RECENT:  # its share is whole again
            del self._accounts[oldest]

    def wait(self, tenant: str) -> float:
        """Return the seconds for which no message of a tenant should be read, and no request begin; 0: now."""
        account = self._accounts.get(tenant)
        if account is None or account.left >= 0:
            return 0.0
        now = self._clock()
        others = next((other.at for name, other in reversed(self._accounts.items()) if name != tenant), now - RECENT)
        if now - others >= RECENT:
            return 0.0
        return max(0.0, -self._grown(account, now) / SHARE)

    @staticmethod
    def _grown(account: _Account, now: float) -> float:
        return min(BURST, account.left + SHARE * (now - account.at))
