"""What a tenant's clients send and the gateway must keep: incomplete messages and bodies, and cells that wait.

Each is bounded, but a client may begin many of them and complete none. So they are also bounded together, for each
tenant and in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares


class Incoming:
    """The bytes that are kept for each tenant."""

    def __init__(self, most: int, in_all: int = 0, share: float = 1.0) -> None:
        """Begin without bytes.

        Args:
            most: bytes of one tenant.
            in_all: bytes of all tenants; 0: no limit.
            share: part of what other tenants leave of these that one tenant may have; 1: all of it.
        """
        self._most = most
        self._held = Shares(in_all, share)

    def share(self, tenant: str) -> Share:
        """Return a new part of a tenant's bytes: of one connection or request."""
        return Share(self, tenant)

    def take(self, tenant: str, count: int) -> bool:
        """Count bytes, unless the tenant would then have too many; return whether they are counted."""
        held = self._held
        if count > 0 and (held.of(tenant) + count > self._most or not held.allows(tenant, count)):
            return False
        held.add(tenant, count)
        return True

    def refusal(self, what: str, tenant: str) -> QuotaExceeded:
        """Return the error for what is refused because the tenant would have too many bytes.

        Args:
            what: what the bytes are, in the plural.
            tenant: name of the tenant.
        """
        most = min(self._most, self._held.share_of(tenant))
        return QuotaExceeded(f"{what} of the tenant are above {most} bytes together", max=most)


class Share:
    """The part of a tenant's bytes that belongs to one connection or request."""

    def __init__(self, incoming: Incoming, tenant: str) -> None:
        self._incoming = incoming
        self._tenant = tenant
        self._held = 0
        self._closed = False

    def take(self, count: int) -> bool:
        """Keep more bytes, or fewer if the count is below 0.

        Returns:
            False when the tenant has too many; then nothing has changed.
        """
        if self._closed:
            return True  # its end has given everything back
        if not self._incoming.take(self._tenant, count):
            return False
        self._held += count
        return True

    def close(self) -> None:
        """Give everything back for good."""
        self.take(-self._held)
        self._closed = True


class MessageWatch:
    """The message that arrives on one WebSocket: its bytes, and the time since it began."""

    def __init__(
        self, share: Share, seconds: float, too_much: Callable[[], None], too_slow: Callable[[], None]
    ) -> None:
        """Wait for a message.

        Args:
            share: counts the bytes.
            seconds: time for one message.
            too_much: called when the tenant has too many bytes.
            too_slow: called when a message takes too long.
        """
        self._share = share
        self._seconds = seconds
        self._too_much = too_much
        self._too_slow = too_slow
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False

    def arrived(self, count: int) -> None:
        """Count bytes that have just arrived."""
        if not self._share.take(count):
            self.stop()
            self._too_much()
            return
        self._count += count
        self._start()

    def completed(self) -> None:
        """Note that a whole message has arrived. Its handling takes the gateway's time, not the client's."""
        self.stop()
        self._busy = True

    def handled(self, left: int, *, within_message: bool = False) -> None:
        """Note that a frame was handled.

        Args:
            left: bytes that the gateway still keeps of later frames, and of the message.
            within_message: True after a frame that does not end the message.
        """
        if self._share.take(left - self._count):
            self._count = left
        self._busy = False
        if not within_message:
            self.stop()
        if left:
            self._start()

    def _start(self) -> None:
        if self._timer is None and not self._busy:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._too_slow)

    def stop(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
