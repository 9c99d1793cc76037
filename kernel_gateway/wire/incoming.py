"""Limits the memory for what clients send: incomplete messages and request bodies, and cells that wait.

Each of them is limited, but a client may begin many of them and complete none. So the sum of their bytes is also
limited, for each tenant and for all tenants together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares


class Incoming:
    """The bytes that are kept for each tenant."""

    def __init__(self, most: int, in_all: int = 0, share: float = 1.0) -> None:
        """Start without bytes.

        Args:
            most: maximum bytes of one tenant.
            in_all: maximum bytes of all tenants together. 0 means no limit.
            share: part of the bytes that other tenants leave which one tenant may use, from 0 to 1.
        """
        self._most = most
        self._held = Shares(in_all, share)

    def account(self, tenant: str) -> Account:
        """Return a new account for the bytes of one connection or request of a tenant."""
        return Account(self, tenant)

    def take(self, tenant: str, count: int) -> bool:
        """Count bytes of a tenant. Return False, and count nothing, if the tenant would then have too many.

        Args:
            tenant: name of the tenant.
            count: number of bytes. A negative number gives bytes back.
        """
        held = self._held
        if count > 0 and (held.of(tenant) + count > self._most or not held.allows(tenant, count)):
            return False
        held.add(tenant, count)
        return True

    def refusal(self, what: str, tenant: str) -> QuotaExceeded:
        """Return the error for a client whose tenant would have too many bytes.

        Args:
            what: plural noun for the refused objects, for example `incomplete messages`.
            tenant: name of the tenant.
        """
        most = min(self._most, self._held.share_of(tenant))
        return QuotaExceeded(f"{what} of the tenant are above {most} bytes together", max=most)


class Account:
    """Counts the bytes of one connection or request of a tenant."""

    def __init__(self, incoming: Incoming, tenant: str) -> None:
        self._incoming = incoming
        self._tenant = tenant
        self._held = 0
        self._closed = False

    def take(self, count: int) -> bool:
        """Count more bytes, or give bytes back if the count is negative.

        Returns:
            False if the tenant would then have too many bytes; nothing has changed then.
        """
        if self._closed:
            return True  # `close` has given all bytes back
        if not self._incoming.take(self._tenant, count):
            return False
        self._held += count
        return True

    def close(self) -> None:
        """Give all bytes back, and count no more."""
        self.take(-self._held)
        self._closed = True


class MessageWatch:
    """Limits the bytes and the time of the message that arrives on a WebSocket."""

    def __init__(
        self, account: Account, seconds: float, too_much: Callable[[], None], too_slow: Callable[[], None]
    ) -> None:
        """Wait for a message.

        Args:
            account: counts the bytes.
            seconds: maximum time from the first byte of a message to its last.
            too_much: called when the tenant has too many bytes.
            too_slow: called when a message takes longer than `seconds`.
        """
        self._account = account
        self._seconds = seconds
        self._too_much = too_much
        self._too_slow = too_slow
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False

    def arrived(self, count: int) -> None:
        """Count bytes that have just arrived."""
        if not self._account.take(count):
            self.stop()
            self._too_much()
            return
        self._count += count
        self._start()

    def completed(self) -> None:
        """Stop the time limit, because a whole message has arrived and the gateway now handles it."""
        self.stop()
        self._busy = True

    def handled(self, left: int, *, within_message: bool = False) -> None:
        """Give back the bytes of a handled frame. If further bytes have arrived, start the time limit again.

        Args:
            left: bytes that the gateway still keeps: of later frames, and of an incomplete message.
            within_message: True after a frame that does not end its message.
        """
        if self._account.take(left - self._count):
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
        """Stop the time limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
