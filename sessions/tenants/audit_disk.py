"""The disk of the audit: what one tenant may write of it once little is left, so that others can still run cells.

Records are kept for long, so what a tenant wrote over the years says nothing about what it takes from others now.
Counted is what is written while the disk has less than `FLOOR` free: of that room a tenant has a share. Pure.
"""

from __future__ import annotations

import structlog

from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares

log = structlog.get_logger()

#: free bytes below which tenants have shares: room for the write-ahead log at its largest, and for 100,000 executions
FLOOR = 256 * 1024**2
#: bytes that the records of one execution take, indices included: 800 to 1,013, by the lengths of names
COST = 1024
#: seconds after which a refused cell may be sent again: only the operator, or the removal of old records, makes room
RETRY_AFTER = 60


class AuditDisk:
    """What tenants have written since there is little room."""

    def __init__(self, share: float = 1.0) -> None:
        """Count nothing yet.

        Args:
            share: part of what other tenants leave that one tenant may have; 1: all of it.
        """
        self._share = share
        self._written = Shares(share=share)
        self._told = False

    def admit(self, tenant: str, room: int) -> None:
        """Allow a tenant the records of one execution more.

        On a disk that is full all executions are allowed here: the audit itself refuses those of all tenants.

        Args:
            tenant: name of the tenant.
            room: bytes that records may still take.

        Raises:
            QuotaExceeded: when there is little room, and the tenant has written its share of it.
        """
        if room >= FLOOR:
            self._written, self._told = Shares(share=self._share), False
            return
        self._written.most = self._written.used + room
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
        """Count the records of executions."""
        self._written.add(tenant, executions * COST)
