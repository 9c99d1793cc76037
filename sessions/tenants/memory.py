"""The memory that is promised to kernels: the sum of their limits, however much they use. No event loop, no clock.

A limit bounds one kernel. This module bounds the sum of all limits, so that the host has enough memory even if every
kernel uses all that it was promised.
"""

from __future__ import annotations

from sessions.model.errors import QuotaExceeded
from sessions.tenants.budget import Budget

#: seconds after which a start that was refused may be tried again
RETRY_AFTER = 5
#: name of the limit of all kernels together, in errors
IN_ALL = "memory_in_all"
_MIB = 1024**2


class PromisedMemory:
    """The memory promised to all kernels together."""

    def __init__(self, most: int = 0, share: float = 1.0) -> None:
        """Begin without kernels. The arguments are those of `Budget`."""
        self._budget = Budget(most, share)

    @property
    def promised(self) -> int:
        """Bytes promised to all kernels together."""
        return self._budget.used

    def by_tenant(self) -> dict[str, int]:
        """Return the bytes promised to the kernels of each tenant."""
        return self._budget.by_tenant()

    def promise(self, place: str, tenant: str, size: int) -> None:
        """Promise memory to a kernel. The caller must call `release` when the kernel has ended.

        Args:
            place: name of the promise. A kernel and the kernel that replaces it have the same place, so the memory is
                promised only once.
            tenant: tenant of the kernel. NOBODY means that the kernel is started ahead of need.
            size: bytes.

        Raises:
            QuotaExceeded: when the sum would exceed the maximum, or the tenant's share.
        """
        more = max(0, size - self._budget.size(place))
        if not self._budget.fits(more):
            raise QuotaExceeded(
                f"all kernels together may be promised {self._budget.most // _MIB} MiB of memory, and "
                f"{self.promised // _MIB} MiB are",
                limit=IN_ALL,
                max=self._budget.most,
                retry_after=RETRY_AFTER,
            )
        self.require_share(tenant, more)
        self.hold(place, tenant, size)

    def require_share(self, tenant: str, more: int) -> None:
        """Check that a tenant's share has so many more bytes.

        Raises:
            QuotaExceeded: when it has not.
        """
        if not self._budget.fits_share(tenant, more):
            raise QuotaExceeded(
                f"the kernels of one tenant may be promised only a part of {self._budget.most // _MIB} MiB of memory: "
                "the rest is for other tenants",
                limit="memory_of_tenant",
                max=self._budget.share_of(tenant),
                retry_after=RETRY_AFTER,
            )

    def hand_over(self, place: str, tenant: str) -> None:
        """Count the memory of a kernel, which was started ahead of need, for the tenant that gets the kernel now."""
        self._budget.hand_over(place, tenant)

    def hold(self, place: str, tenant: str, size: int) -> None:
        """Count the memory of a kernel that runs already. The caller must call `release` when the kernel has ended."""
        self._budget.hold(place, tenant, size)

    def release(self, place: str) -> None:
        """Take back the promise of a kernel that has ended."""
        self._budget.release(place)
