"""What must be known to go on with sessions and sandboxes when the gateway was killed.

Kernels live in containers and outlive it. Where they listen, and the keys to talk to them, stand only here: in a
database that nobody else can read, never in a container's labels. A container that does not stand here is nobody's.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError

from sessions.errors import LedgerUnavailable
from sessions.models import ConnectionInfo, SandboxSpec, SessionKey, SessionSpec, StateChange

log = structlog.get_logger()

#: ended sessions that are remembered, so that who comes back is told that the variables are gone
REMEMBERED = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (kind, tenant, name)
) STRICT;
CREATE TABLE IF NOT EXISTS ended (
    at INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, UNIQUE (tenant, name)
) STRICT;
CREATE TABLE IF NOT EXISTS asked (
    tenant TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (tenant, name, key)
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A kernel's container, or one without a kernel."""

    id: str
    info: ConnectionInfo
    workspace: str


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session."""

    key: SessionKey
    spec: SessionSpec
    #: seconds since 1970
    created_at: float
    incarnation: int
    #: of its kernel
    place: Place
    #: what became of the variables, as long as no execution has been told
    change: StateChange = StateChange.PRESERVED
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox."""

    key: SessionKey
    spec: SandboxSpec
    workspace: str
    #: seconds since 1970
    created_at: float
    #: its own container; None: it has none at the moment
    place: Place | None = None
    #: what became of files that a client may count on; None: they are all there
    loss: str | None = None


R = TypeVar("R", SessionRecord, SandboxRecord)


class _Kept(Generic[R]):
    """The records of one kind."""

    def __init__(self, database: sqlite3.Connection, kind: type[R]) -> None:
        self._database = database
        self._kind = kind.__name__
        self._records: TypeAdapter[R] = TypeAdapter(kind)

    def all(self) -> Iterator[R]:
        rows = "SELECT tenant, name, record FROM kept WHERE kind = ? ORDER BY rowid"
        for tenant, name, record in self._database.execute(rows, [self._kind]):
            try:
                yield self._records.validate_json(record)
            except ValidationError:  # written by another version
                log.error("a record cannot be read", kind=self._kind, tenant=tenant, name=name)  # noqa: TRY400 - it may hold secrets

    def put(self, record: R) -> None:
        self._database.execute(
            "INSERT INTO kept VALUES (?, ?, ?, ?) "
            "ON CONFLICT (kind, tenant, name) DO UPDATE SET record = excluded.record",
            [self._kind, *_pair(record.key), self._records.dump_json(record)],
        )

    def delete(self, key: SessionKey) -> None:
        self._database.execute("DELETE FROM kept WHERE kind = ? AND tenant = ? AND name = ?", [self._kind, *_pair(key)])


class Asked:
    """The keys of one session's executions that must not run twice, and what tells one request from another."""

    def __init__(self, database: sqlite3.Connection, session: SessionKey) -> None:
        self._database = database
        self._session = _pair(session)

    def all(self) -> dict[str, bytes]:
        """The digests of all that were begun, by their keys."""
        rows = self._database.execute("SELECT key, digest FROM asked WHERE tenant = ? AND name = ?", self._session)
        return dict(rows.fetchall())

    def add(self, key: str, digest: bytes) -> None:
        """One is about to begin.

        Raises:
            LedgerUnavailable: it cannot be written, and must not begin.
        """
        try:
            self._database.execute("INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?)", [*self._session, key, digest])
        except sqlite3.Error as error:
            log.exception("the ledger cannot be written")
            raise LedgerUnavailable from error

    def forget(self, key: str) -> None:
        """One is remembered no longer, or has not begun."""
        try:
            self._database.execute("DELETE FROM asked WHERE tenant = ? AND name = ? AND key = ?", [*self._session, key])
        except sqlite3.Error:
            log.exception("the ledger cannot be written")


class Ledger:
    """The records of one gateway."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Open them.

        Args:
            path: the database, made if absent; None: in memory, for nobody to come back to.
            clock: seconds since 1970.
        """
        self.clock = clock
        self._database = _open(path)
        self._sessions = _Kept(self._database, SessionRecord)
        self._sandboxes = _Kept(self._database, SandboxRecord)

    def sessions(self) -> list[SessionRecord]:
        """All sessions, oldest first."""
        return list(self._sessions.all())

    def sandboxes(self) -> list[SandboxRecord]:
        """All sandboxes, oldest first."""
        return list(self._sandboxes.all())

    def keep(self, record: SessionRecord | SandboxRecord) -> None:
        """Write down how a session or sandbox is now.

        Raises:
            LedgerUnavailable: it cannot be written.
        """
        try:
            if isinstance(record, SessionRecord):
                self._sessions.put(record)
                self._database.execute("DELETE FROM ended WHERE tenant = ? AND name = ?", _pair(record.key))
            else:
                self._sandboxes.put(record)
        except sqlite3.Error as error:
            log.exception("the ledger cannot be written")
            raise LedgerUnavailable from error

    def end(self, key: SessionKey, reason: str) -> None:
        """A session has ended. Ends must be possible on a full disk: one that cannot be written is found later.

        Args:
            key: which.
            reason: what a client that comes back is told.
        """
        try:
            self._database.execute("BEGIN")
            self._sessions.delete(key)
            self._database.execute("DELETE FROM asked WHERE tenant = ? AND name = ?", _pair(key))
            self._database.execute(
                "INSERT OR REPLACE INTO ended (tenant, name, reason) VALUES (?, ?, ?)", [*_pair(key), reason]
            )
            self._database.execute("DELETE FROM ended WHERE at <= (SELECT max(at) FROM ended) - ?", [REMEMBERED])
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            log.exception("the ledger cannot be written")

    def end_sandbox(self, key: SessionKey) -> None:
        """A sandbox has ended; as `end`."""
        try:
            self._sandboxes.delete(key)
        except sqlite3.Error:
            log.exception("the ledger cannot be written")

    def asked(self, key: SessionKey) -> Asked:
        """The executions that clients of a session may ask for again."""
        return Asked(self._database, key)

    def why_ended(self, key: SessionKey) -> str | None:
        """Why the last session of this key has ended, if there was one and it is remembered."""
        row = self._database.execute("SELECT reason FROM ended WHERE tenant = ? AND name = ?", _pair(key)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Free the database."""
        self._database.close()


def _open(path: Path | None) -> sqlite3.Connection:
    """The database; one that is damaged is put aside, and the containers that stand in it are nobody's."""
    if path is None:
        return _prepared(sqlite3.connect(":memory:", isolation_level=None))
    path.touch(mode=0o600)  # SQLite makes its other files like this one
    try:
        return _prepared(sqlite3.connect(path, isolation_level=None))
    except sqlite3.OperationalError:
        raise  # it is not damaged: the disk is full, or fails
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        log.error("the ledger is damaged: its sessions are lost", path=str(aside), error=str(error))  # noqa: TRY400
        path.rename(aside)
        return _open(path)


def _prepared(database: sqlite3.Connection) -> sqlite3.Connection:
    # Small and rarely written: no threads are needed for it.
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(_SCHEMA)
        if (found := database.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _pair(key: SessionKey) -> list[str]:
    return [key.tenant, key.name]
