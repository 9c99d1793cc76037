"""The disk for the workspaces of all tenants: the part that may be promised to one tenant. Pure.

Each workspace counts with the size that it may grow to. The backend checks that all workspaces fit on the disk.
"""

from __future__ import annotations

from collections.abc import Callable

from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares

#: seconds after which a workspace that was refused may be asked for again
RETRY_AFTER = 5
_MIB = 1024**2


def unknown_room() -> int:
    """Return 0, which means that the size of the disk is not known."""
    return 0


class WorkspaceDisk:
    """The disk for all workspaces."""

    def __init__(self, room: Callable[[], int] = unknown_room, share: float = 1.0) -> None:
        """Begin without workspaces.

        Args:
            room: returns the bytes that all workspaces together may have. 0 means unknown or not limited.
            share: part, from 0 to 1, that one tenant may have of what the other tenants leave.
        """
        self._room = room
        self._held = Shares(share=share)

    def by_tenant(self) -> dict[str, int]:
        """Return the bytes that the workspaces of each tenant may take."""
        return self._held.by_tenant()

    def admit(self, tenant: str, more: int) -> None:
        """Check that a tenant may have one more workspace.

        Args:
            tenant: name of the tenant.
            more: bytes of the workspace.

        Raises:
            QuotaExceeded: when the tenant's share is too small.
        """
        self._held.limit_to(self._room())  # asked each time: a backend may learn the size only later
        if more and not self._held.fits_share(tenant, more):
            raise QuotaExceeded(
                f"the workspaces of one tenant may have only a part of {self._held.most // _MIB} MiB of disk: the rest "
                "is for other tenants",
                limit="disk_of_tenant",
                max=self._held.share_of(tenant),
                retry_after=RETRY_AFTER,
            )

    def hold(self, tenant: str, size: int) -> None:
        """Count a workspace, even if the limits are exceeded. The caller must call `release` when it is deleted."""
        self._held.add(tenant, size)

    def release(self, tenant: str, size: int) -> None:
        """Stop counting a workspace that was deleted."""
        self._held.add(tenant, -size)
