"""What each tenant has used within a period, for its bill.

Cells are counted from the audit, which has each of them. This store adds only what the audit does not have: the memory
and disk that tenants hold, summed up by the hour. If the gateway is killed, the last minute of these sums is lost.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog

from sessions.model.tasks import forever
from sessions.store.database import open_database, read_only
from sessions.store.records import REFUSED, UNSENT

log = structlog.get_logger()

#: seconds between two looks at what tenants hold
LOOK = 10.0
#: seconds between two writes
SAVE = 60.0
#: seconds of the parts of time that are summed up
HOUR = 3600

_SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
    hour INTEGER NOT NULL, tenant TEXT NOT NULL, memory REAL NOT NULL, disk REAL NOT NULL, PRIMARY KEY (hour, tenant)
) STRICT, WITHOUT ROWID
"""
_ADD = """
INSERT INTO held VALUES (?, ?, ?, ?)
    ON CONFLICT (hour, tenant) DO UPDATE SET memory = memory + excluded.memory, disk = disk + excluded.disk
"""
_HELD = """
SELECT tenant, sum(memory) AS memory_byte_seconds, sum(disk) AS disk_byte_seconds FROM held
    WHERE hour * :hour >= :since AND hour * :hour < :until GROUP BY tenant
"""
_CELLS = """
SELECT json_extract(CAST(b.record AS TEXT), '$.tenant') AS tenant, count(*) AS cells,
    total(json_extract(CAST(e.record AS TEXT), '$.duration_ms')) / 1000 AS cell_seconds,
    sum(coalesce(json_extract(CAST(e.record AS TEXT), '$.output_bytes'), 0)) AS output_bytes
    FROM audit e JOIN audit b ON b.execution = e.execution AND b.event = 'begin'
    WHERE e.event = 'end' AND json_extract(CAST(e.record AS TEXT), '$.outcome') NOT IN (:unsent, :refused)
    AND json_extract(CAST(e.record AS TEXT), '$.at') >= :since
    AND json_extract(CAST(e.record AS TEXT), '$.at') < :until GROUP BY tenant
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What tenants hold at one moment, in bytes by tenant."""

    #: memory that their kernels may use
    memory: Mapping[str, int]
    #: disk that their workspaces may take, and that their sleeping sessions and checkpoints take
    disk: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """What one tenant has used within a period."""

    tenant: str
    #: cells and commands that have ended, except those that were never run
    cells: int = 0
    #: seconds that these cells took
    cell_seconds: float = 0.0
    #: bytes of their output, including bytes that were left out
    output_bytes: int = 0
    #: held memory in bytes times seconds
    memory_byte_seconds: float = 0.0
    #: held disk in bytes times seconds
    disk_byte_seconds: float = 0.0


class UsageStore:
    """The memory and disk that all tenants have held, by the hour."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the database.

        Args:
            path: path of the database. It is made if absent.
            clock: returns seconds since 1970.
        """
        self._clock = clock
        self._database = open_database(path, _SCHEMA)
        #: sums that are not written yet, in bytes times seconds, by hour and tenant
        self._memory: Counter[tuple[int, str]] = Counter()
        self._disk: Counter[tuple[int, str]] = Counter()

    def add(self, held: Held, seconds: float) -> None:
        """Count what tenants have held for some seconds until now."""
        hour = int(self._clock() // HOUR)
        for sums, amounts in ((self._memory, held.memory), (self._disk, held.disk)):
            for tenant, amount in amounts.items():
                sums[hour, tenant] += round(amount * seconds)

    def save(self) -> None:
        """Write the sums. If that fails, they are kept in memory, and the next call tries again."""
        rows = [(*place, self._memory[place], self._disk[place]) for place in self._memory.keys() | self._disk.keys()]
        if not rows:
            return
        try:
            with self._database.transaction():
                self._database.executemany(_ADD, rows)
        except sqlite3.Error as error:
            log.warning("the use of memory and disk cannot be written", error=str(error))
        else:
            self._memory.clear()
            self._disk.clear()

    def remove_old(self, age: float) -> None:
        """Remove sums that are older than `age` seconds. A failure is only logged."""
        try:
            self._database.execute("DELETE FROM held WHERE hour < ?", [(self._clock() - age) // HOUR])
        except sqlite3.Error as error:
            log.warning("old sums of memory and disk cannot be removed", error=str(error))

    async def keep_counting(self, held: Callable[[], Held], age: float = 0.0) -> NoReturn:
        """Look at intervals at what tenants hold, and write it from time to time. Runs until cancelled.

        Args:
            held: returns what tenants hold now.
            age: seconds after which sums are removed. 0 means never.
        """
        seen = saved = time.monotonic()

        async def look() -> None:
            nonlocal seen, saved
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            self.add(held(), now - seen)
            seen = now
            if now - saved >= SAVE:
                saved = now
                self.save()
                if age:
                    self.remove_old(age)

        await forever(look)

    def close(self) -> None:
        """Write the sums, and close the database."""
        self.save()
        self._database.close()


def usage_of(state_dir: Path, since: float | None, until: float | None) -> list[TenantUsage]:
    """Return what each tenant has used within a period, by name. Call this in a thread: it reads all executions of it.

    A cell counts when it ends. Memory and disk count in the hours that begin within the period.

    Args:
        state_dir: directory of the databases. A gateway may write them meanwhile.
        since: begin of the period, in seconds since 1970. None means the first record.
        until: end of the period, which is not part of it. None means now.

    Raises:
        sqlite3.Error: when a database cannot be read.
    """
    period = {"since": since or 0.0, "until": 2.0**62 if until is None else until}
    cells = _read(state_dir / "audit.db", _CELLS, {**period, "unsent": UNSENT, "refused": REFUSED})
    held = _read(state_dir / "usage.db", _HELD, {**period, "hour": HOUR})
    return [
        TenantUsage(tenant=tenant, **cells.get(tenant, {}), **held.get(tenant, {})) for tenant in sorted(cells | held)
    ]


def _read(path: Path, query: str, values: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """Return the other columns of the result by the tenant, which is its first column."""
    if not path.exists():  # the last version had no such database
        return {}
    with closing(read_only(path)) as database:
        rows = database.execute(query, values)
        _, *names = (column[0] for column in rows.description)
        return {tenant: dict(zip(names, others, strict=True)) for tenant, *others in rows}
