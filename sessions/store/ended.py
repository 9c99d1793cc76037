"""Remembers why sessions ended, so that a returning client learns why its variables are lost."""

from __future__ import annotations

import sqlite3
from collections import Counter

from sessions.model.values import SessionKey

#: number of remembered ends, over all tenants
REMEMBERED = 10_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS ended (
    at INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL,
    place TEXT NOT NULL DEFAULT '', UNIQUE (tenant, name)
) STRICT;
CREATE INDEX IF NOT EXISTS ended_of ON ended (tenant);
"""


class EndedSessions:
    """The newest ends of sessions. If there are too many, the oldest end of the tenant with the most is forgotten."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Count the ends that an earlier gateway has recorded.

        Args:
            database: connection to a database with the tables of `SCHEMA`.
        """
        self._database = database
        columns = {name for _, name, *_ in database.execute("PRAGMA table_info(ended)")}
        if "place" not in columns:  # an earlier version has made the table
            database.execute("ALTER TABLE ended ADD COLUMN place TEXT NOT NULL DEFAULT ''")
        database.execute("CREATE INDEX IF NOT EXISTS ended_at ON ended (tenant, place)")  # needs the column
        self._counts: Counter[str] = Counter()
        self.count()

    def count(self) -> None:
        """Count all ends again. Call this after a transaction that was rolled back."""
        rows = self._database.execute("SELECT tenant, count(*) FROM ended GROUP BY tenant ORDER BY min(at)")
        self._counts = Counter(dict(rows))

    def why(self, key: SessionKey) -> str | None:
        """Return why the last session with this key ended. None if there was none, or its end is forgotten."""
        row = self._database.execute(
            "SELECT reason FROM ended WHERE tenant = ? AND name = ?", [key.tenant, key.name]
        ).fetchone()
        return row[0] if row else None

    def last_at(self, tenant: str, place: str) -> tuple[SessionKey, str] | None:
        """Return the last ended session of a place, and why it ended. None if no such end is remembered."""
        row = self._database.execute(
            "SELECT name, reason FROM ended WHERE tenant = ? AND place = ? ORDER BY at DESC", [tenant, place]
        ).fetchone()
        return (SessionKey(tenant, row[0]), row[1]) if row else None

    def add(self, key: SessionKey, reason: str, place: str = "") -> None:
        """Remember an end. If there are too many, forget another one."""
        self.remove(key)
        self._database.execute(
            "INSERT INTO ended (tenant, name, reason, place) VALUES (?, ?, ?, ?)",
            [key.tenant, key.name, reason, place],
        )
        self._counts[key.tenant] += 1
        if self._counts.total() > REMEMBERED:
            (tenant, _), *_ = self._counts.most_common(1)
            self._database.execute(
                "DELETE FROM ended WHERE at = (SELECT min(at) FROM ended WHERE tenant = ?)", [tenant]
            )
            self._less(tenant)

    def remove(self, key: SessionKey) -> None:
        """Forget the end of the session with this key, if there is one."""
        removed = self._database.execute("DELETE FROM ended WHERE tenant = ? AND name = ?", [key.tenant, key.name])
        if removed.rowcount:
            self._less(key.tenant)

    def _less(self, tenant: str) -> None:
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
