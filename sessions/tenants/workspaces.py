"""The disk for the workspaces of all tenants: which part of it one tenant may be promised. Pure.

What is counted is what workspaces may grow to. That all of them fit on the disk is checked where they are made.
"""

from __future__ import annotations

from collections.abc import Callable

from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares

#: seconds after which a workspace that was refused may be asked for again
RETRY_AFTER = 5
_MIB = 1024**2


def unknown_room() -> int:
    """Return 0: it is not known how much there is."""
    return 0


class WorkspaceDisk:
    """The disk for all workspaces."""

    def __init__(self, room: Callable[[], int] = unknown_room, share: float = 1.0) -> None:
        """Begin without workspaces.

        Args:
            room: returns the bytes that all workspaces together may have; 0: not known, or not limited.
            share: part of what other tenants leave that one tenant may have; 1: all of it.
        """
        self._room = room
        self._held = Shares(share=share)

    def admit(self, tenant: str, more: int) -> None:
        """Allow a tenant one workspace more.

        Args:
            tenant: name of the tenant.
            more: bytes of the workspace.

        Raises:
            QuotaExceeded: when that is more than its part.
        """
        self._held.most = self._room()  # a backend knows it when it has looked
        if more and not self._held.fits_share(tenant, more):
            raise QuotaExceeded(
                f"the workspaces of one tenant may have only a part of {self._held.most // _MIB} MiB of disk: the rest "
                "is for other tenants",
                limit="disk_of_tenant",
                max=self._held.share_of(tenant),
                retry_after=RETRY_AFTER,
            )

    def hold(self, tenant: str, size: int) -> None:
        """Count a workspace, also one beyond the limits. Then `release` must follow."""
        self._held.add(tenant, size)

    def release(self, tenant: str, size: int) -> None:
        """Record that a workspace is deleted."""
        self._held.add(tenant, -size)
