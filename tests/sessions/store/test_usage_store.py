"""What tenants have used: cells from the audit, memory and disk from the sums of each hour."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sessions.model.tasks import spawn
from sessions.model.values import SessionKey
from sessions.store import usage_store
from sessions.store.audit import Audit
from sessions.store.records import REFUSED, UNKNOWN, UNSENT, End
from sessions.store.usage_store import HOUR, Held, TenantUsage, UsageStore, usage_of
from tests.fakes import Clock, until

MIB = 1024**2


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = 100.0 * HOUR
    return clock


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[UsageStore]:
    with closing(UsageStore(tmp_path / "usage.db", clock)) as opened:
        yield opened


def ran(audit: Audit, tenant: str, end: End) -> None:
    audit.end(audit.begin(SessionKey(tenant, "s"), "python", "1"), end)


def test_cells_are_counted_from_the_audit_at_their_end(tmp_path: Path, clock: Clock) -> None:
    with closing(Audit(tmp_path / "audit.db", clock)) as audit:
        ran(audit, "acme", End(outcome="ok", duration_ms=1500.0, output_bytes=10))
        ran(audit, "acme", End(outcome="error", duration_ms=500.0, output_bytes=5))
        ran(audit, "acme", End(outcome=UNKNOWN))
        for never in (UNSENT, REFUSED):
            ran(audit, "nobody", End(outcome=never))
        long = audit.begin(SessionKey("beta", "s"), "python", "1")
        assert [usage.tenant for usage in usage_of(tmp_path, None, None)] == ["acme"]
        clock.passes(60)
        audit.end(long, End(outcome="timeout", duration_ms=60_000.0, output_bytes=0))
    acme = TenantUsage(tenant="acme", cells=3, cell_seconds=2.0, output_bytes=15)
    beta = TenantUsage(tenant="beta", cells=1, cell_seconds=60.0)
    assert usage_of(tmp_path, None, None) == [acme, beta]
    assert usage_of(tmp_path, clock.now, None) == [beta]
    assert usage_of(tmp_path, None, clock.now) == [acme]
    assert usage_of(tmp_path, clock.now + 1, None) == []


def test_a_report_reads_only_the_cells_of_its_period(tmp_path: Path, clock: Clock) -> None:
    steps = dict.fromkeys(("all", "last"), 0)
    with closing(Audit(tmp_path / "audit.db", clock)) as audit:
        for _ in range(500):
            ran(audit, "acme", End(outcome="ok", duration_ms=1.0, output_bytes=1))
            clock.passes(1)
    for period, since in (("all", 0.0), ("last", clock.now - 5)):
        with closing(sqlite3.connect(tmp_path / "audit.db")) as database:

            def count(which: str = period) -> None:
                steps[which] += 1

            database.set_progress_handler(count, 10)
            asked = {"since": since, "until": clock.now, "unsent": UNSENT, "refused": REFUSED}
            assert database.execute(usage_store._CELLS, asked).fetchone()[1] == (500 if period == "all" else 5)
    assert steps["last"] < steps["all"] / 20


def test_memory_and_disk_are_counted_by_the_hour_and_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    held = Held({"acme": 512 * MIB}, {"acme": 256 * MIB, "beta": MIB})
    for _ in range(2):
        with closing(UsageStore(tmp_path / "usage.db", clock)) as store:
            store.add(held, 10.0)
            store.save()
            store.add(held, 5.0)
        clock.passes(HOUR)
    acme = TenantUsage(tenant="acme", memory_byte_seconds=15.0 * 512 * MIB, disk_byte_seconds=15.0 * 256 * MIB)
    beta = TenantUsage(tenant="beta", disk_byte_seconds=15.0 * MIB)
    second = 101.0 * HOUR
    assert usage_of(tmp_path, second, None) == usage_of(tmp_path, None, second) == [acme, beta]
    assert [usage.disk_byte_seconds for usage in usage_of(tmp_path, None, None)] == [30.0 * 256 * MIB, 30.0 * MIB]
    assert usage_of(tmp_path, second + 1, second + 2) == []


def test_a_state_directory_of_the_last_version_has_a_report(tmp_path: Path) -> None:
    with closing(Audit(tmp_path / "audit.db")) as audit:
        ran(audit, "acme", End(outcome="ok", duration_ms=1000.0, output_bytes=1))
    assert usage_of(tmp_path, None, None) == [TenantUsage(tenant="acme", cells=1, cell_seconds=1.0, output_bytes=1)]


def test_sums_that_cannot_be_written_are_written_later_and_once(tmp_path: Path, store: UsageStore) -> None:
    store.add(Held({"acme": 7}, {}), 1.0)
    with closing(sqlite3.connect(tmp_path / "usage.db", isolation_level=None)) as another, capture_logs() as logs:
        another.execute("BEGIN IMMEDIATE")
        store.save()
    assert [entry["event"] for entry in logs] == ["the use of memory and disk cannot be written"]
    assert usage_of(tmp_path, None, None) == []
    for _ in range(2):
        store.save()
        assert [usage.memory_byte_seconds for usage in usage_of(tmp_path, None, None)] == [7.0]


def test_old_sums_are_removed(tmp_path: Path, store: UsageStore, clock: Clock) -> None:
    for _ in range(3):
        store.add(Held({"acme": 1}, {}), 1.0)
        clock.passes(HOUR)
    store.save()
    store.remove_old(2.0 * HOUR)
    assert [usage.memory_byte_seconds for usage in usage_of(tmp_path, None, None)] == [2.0]


async def test_what_tenants_hold_is_looked_at_and_written_from_time_to_time(
    tmp_path: Path, store: UsageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_store, "LOOK", 0.01)
    monkeypatch.setattr(usage_store, "SAVE", 0.02)
    began = asyncio.get_running_loop().time()
    counting = spawn(store.keep_counting(lambda: Held({"acme": 1000}, {})), "counting")
    await until(lambda: usage_of(tmp_path, None, None) != [])
    counting.cancel()
    with suppress(asyncio.CancelledError):
        await counting
    (usage,) = usage_of(tmp_path, None, None)
    assert 10 < usage.memory_byte_seconds <= 1000 * (asyncio.get_running_loop().time() - began)
