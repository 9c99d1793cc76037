"""The disk of the audit: once it is nearly full, each tenant may write only its share, so that others can run cells.

Records are kept for years, so the total of a tenant says nothing about what it takes from others now. Only records
that are written while the disk has less than `FLOOR` bytes free are counted. Pure.
"""

from __future__ import annotations

import structlog

from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares

log = structlog.get_logger()

#: free bytes below which shares apply: room for the largest write-ahead log, and for the records of 100,000 executions
FLOOR = 256 * 1024**2
#: bytes that the records of one execution take, indices included: 870 to 1,219, depending on the lengths of names
COST = 1280
#: seconds after which a client may send a refused cell again: only the operator or the removal of old records makes
#: room, so a shorter time has no use
RETRY_AFTER = 60


class AuditDisk:
    """What each tenant has written since the disk became nearly full."""

    def __init__(self, share: float = 1.0) -> None:
        """Start with no records.

        Args:
            share: part, from 0 to 1, that one tenant may have of what the other tenants leave.
        """
        self._share = share
        self._written = Shares(share=share)
        self._told = False

    def admit(self, tenant: str, room: int) -> None:
        """Check that a tenant may write the records of one more execution.

        If the disk is full, every execution is allowed here, because the audit itself then refuses all of them.

        Args:
            tenant: name of the tenant.
            room: bytes that records may still take.

        Raises:
            QuotaExceeded: when the disk is nearly full, and the tenant has written its share.
        """
        if room >= FLOOR:
            self._written, self._told = Shares(share=self._share), False
            return
        self._written.limit_to(self._written.used + room)
        if room < COST or self._written.fits_share(tenant, COST):
            return
        if not self._told:
            log.warning("the disk of the audit is nearly full: what is left is for other tenants", tenant=tenant)
        self._told = True
        raise QuotaExceeded(
            "the disk of the audit is nearly full, and what is left of it is for other tenants; tell the operator",
            limit="audit_of_tenant",
            max=self._written.share_of(tenant),
            retry_after=RETRY_AFTER,
        )

    def add(self, tenant: str, executions: int = 1) -> None:
        """Count the records of executions that a tenant has written."""
        self._written.add(tenant, executions * COST)
