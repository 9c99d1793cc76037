"""Little room for the audit: a tenant that writes much is refused, and all others still run."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from sessions.model.errors import QuotaExceeded
from sessions.tenants.audit_disk import COST, FLOOR, AuditDisk

MIB = 1024**2


class Disk:
    """A disk that gets fuller with each record."""

    def __init__(self, free: int, share: float = 0.5) -> None:
        self.free = free
        self.shares = AuditDisk(share)

    def run(self, tenant: str) -> bool:
        try:
            self.shares.admit(tenant, self.free)
        except QuotaExceeded:
            return False
        self.shares.add(tenant)
        self.free -= COST
        return True

    def flood(self, tenant: str, most: int = 10**6) -> int:
        """Run cells until one is refused, and return the bytes of their records."""
        for number in range(most):
            if not self.run(tenant):
                return number * COST
        raise AssertionError("nothing was refused")


def test_a_flood_of_one_tenant_leaves_half_of_the_floor_and_a_flood_of_another_half_of_that() -> None:
    disk = Disk(FLOOR + 10 * MIB)
    assert disk.flood("evil") == pytest.approx(10 * MIB + FLOOR / 2, abs=2 * COST)
    assert not disk.run("evil")
    assert disk.run("acme")
    assert disk.flood("evil2") == pytest.approx(FLOOR / 4, abs=2 * COST)
    assert all(disk.run("acme") for _ in range(10_000))
    control = Disk(FLOOR, share=1.0)
    with pytest.raises(AssertionError, match="nothing was refused"):
        control.flood("evil", FLOOR // COST)
    assert control.free < COST


def test_what_was_written_while_there_was_room_does_not_count() -> None:
    disk = Disk(10 * FLOOR)
    assert all(disk.run("acme") for _ in range(50_000))
    disk.free = 20 * MIB  # something else fills the disk
    assert all(disk.run("acme") for _ in range(5000))
    disk.flood("acme")
    disk.free = FLOOR  # the operator has made room
    assert disk.run("acme")
    disk.free = 20 * MIB
    assert disk.run("acme"), "the control: what was counted is forgotten"


def test_on_a_full_disk_no_tenant_is_refused_here_because_the_audit_refuses_them_all() -> None:
    disk = Disk(MIB)
    written = disk.flood("evil")
    disk.shares.admit("evil", COST - 1)
    with pytest.raises(QuotaExceeded) as refused:
        disk.shares.admit("evil", COST)
    assert (refused.value.details["limit"], refused.value.details["max"]) == ("audit_of_tenant", (written + COST) // 2)


def test_the_operator_is_told_once_each_time() -> None:
    disk = Disk(MIB)
    with capture_logs() as logs:
        disk.flood("evil")
        for _ in range(10):
            assert not disk.run("evil")
        assert len(logs) == 1
        assert "the disk of the audit is nearly full" in logs[0]["event"]
        disk.free = FLOOR
        assert disk.run("evil")
        disk.free = MIB
        disk.flood("evil")
    assert len(logs) == 2
