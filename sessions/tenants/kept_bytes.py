"""The outputs that sessions keep in memory, for notebooks and retries, in bytes. Pure: no event loop, no clock.

Each session has a limit of its own. Many sessions together could still fill the gateway's memory, so there is also a
limit for each tenant and one for all. If a limit is exceeded, the tenant that keeps most loses first: of its session
that keeps most, the oldest output is dropped. So a tenant that keeps little loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

#: default limits in bytes: for the sessions of one tenant, and for all sessions
PER_TENANT, IN_ALL = 128 * 1024**2, 512 * 1024**2


class KeptBytes:
    """The outputs that all sessions keep, in bytes."""

    def __init__(self, per_tenant: int = PER_TENANT, in_all: int = IN_ALL) -> None:
        """Begin without sessions.

        Args:
            per_tenant: bytes that the sessions of a tenant may keep together.
            in_all: bytes that all sessions may keep together.
        """
        self._per_tenant = per_tenant
        self._in_all = in_all
        self._tenants: dict[str, dict[Share, None]] = {}
        self._sizes: dict[str, int] = {}
        #: bytes that are kept
        self.size = 0

    def share(self, tenant: str, drop_oldest: Callable[[], bool]) -> Share:
        """Return a new share, which counts the bytes of one collection.

        Args:
            tenant: tenant that the collection belongs to.
            drop_oldest: drops the oldest entry of the collection, and subtracts its bytes by `Share.grow`. Returns
                False if no entry can be dropped.
        """
        share = Share(self, tenant, drop_oldest)
        self._tenants.setdefault(tenant, {})[share] = None
        self._sizes.setdefault(tenant, 0)
        return share

    def grow(self, share: Share, count: int) -> None:
        """Add bytes to a share, and drop entries until the limits hold again."""
        share.size += count
        self._sizes[share.tenant] += count
        self.size += count
        if count >= 0:
            while self._sizes.get(share.tenant, 0) > self._per_tenant and self._drop_of(share.tenant):
                pass
            while self.size > self._in_all and self._drop_of(max(self._sizes, key=self._sizes.__getitem__)):
                pass

    def _drop_of(self, tenant: str) -> bool:
        largest_first = sorted(self._tenants[tenant], key=lambda share: share.size, reverse=True)
        return any(share.drop_oldest() for share in largest_first)

    def close(self, share: Share) -> None:
        """Remove a share and its bytes."""
        del self._tenants[share.tenant][share]
        self._sizes[share.tenant] -= share.size
        self.size -= share.size
        if not self._tenants[share.tenant]:
            del self._tenants[share.tenant], self._sizes[share.tenant]


def _nothing() -> bool:
    return False


class Share:
    """The bytes that one collection keeps."""

    def __init__(self, kept: KeptBytes, tenant: str, drop_oldest: Callable[[], bool]) -> None:
        self.tenant = tenant
        self.drop_oldest = drop_oldest
        self.size = 0
        self._kept = kept
        self._closed = False

    def grow(self, count: int) -> None:
        """Add bytes, or subtract them if `count` is negative.

        With 0, only the limits are checked again, because an entry that could not be dropped before may be dropped now.
        """
        if not self._closed:
            self._kept.grow(self, count)

    def close(self) -> None:
        """Give back all bytes. Later calls of `grow` have no effect."""
        if not self._closed:
            self._closed = True
            self._kept.close(self)
            self.drop_oldest = _nothing  # else the collection would be part of a reference cycle
