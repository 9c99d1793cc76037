"""The ledger: what a gateway must know to take over sessions and sandboxes after an earlier gateway was killed.

Kernels run in containers and outlive the gateway. Their addresses and keys are recorded only here, in a database that
no other user can read, and never in a container's labels. A container without a record here belongs to no session.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError

from sessions.model.errors import LedgerUnavailable
from sessions.model.values import SessionKey
from sessions.store import ended
from sessions.store.database import Database, open_or_replace
from sessions.store.ended import EndedSessions
from sessions.store.session_records import SandboxRecord, SessionRecord, SnapshotRecord

log = structlog.get_logger()

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (kind, tenant, name)
) STRICT;
CREATE TABLE IF NOT EXISTS asked (
    tenant TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (tenant, name, key)
) STRICT;
CREATE TABLE IF NOT EXISTS answered (
    tenant TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (tenant, name, key)
) STRICT;
"""

#: tables that have rows for each idempotency key
_OF_KEYS = ("answered", "asked")

R = TypeVar("R", SessionRecord, SandboxRecord, SnapshotRecord)


@contextmanager
def _only_logged() -> Iterator[None]:
    """Log a failure to write, inside the `with` block, and continue after the block."""
    try:
        yield
    except (sqlite3.Error, OSError):
        log.exception("the ledger cannot be written")


@cache  # to make one takes longer than to open the database
def _records(kind: type[R]) -> TypeAdapter[R]:
    """Return what reads and writes the records of one kind."""
    return TypeAdapter(kind)


class _RecordTable(Generic[R]):
    """The records of one kind."""

    def __init__(self, database: sqlite3.Connection, kind: type[R]) -> None:
        self._database = database
        self._kind = kind.__name__
        self._records = _records(kind)  # type: ignore[arg-type]  # a class can be hashed though its records cannot

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


@dataclass(frozen=True, slots=True)
class Asked:
    """An execution that was begun with an idempotency key."""

    #: digest of its request
    digest: bytes
    #: how it ended, in the form that the caller of `IdempotencyKeys.end` chose. None means that its end is not known.
    end: bytes | None = None


class IdempotencyKeys:
    """The idempotency keys of one session's executions, each with the digest of its request, and with its end."""

    def __init__(self, database: Database, session: SessionKey) -> None:
        self._database = database
        self._session = _pair(session)

    def all(self) -> dict[str, Asked]:
        """Return each execution that was begun, by its idempotency key, oldest first."""
        rows = self._database.execute(
            "SELECT key, digest, record FROM asked LEFT JOIN answered USING (tenant, name, key) "
            "WHERE tenant = ? AND name = ? ORDER BY asked.rowid",
            self._session,
        )
        return {key: Asked(digest, end) for key, digest, end in rows}

    def add(self, key: str, digest: bytes, until_sent: bytes) -> None:
        """Record an execution that waits for its turn.

        Args:
            key: its idempotency key.
            digest: digest of its request.
            until_sent: how it has ended if the gateway is killed before `sends`.

        Raises:
            LedgerUnavailable: when the record cannot be written; the execution must not begin.
        """
        with self._must_write(), self._database.transaction():
            for table, value in (("asked", digest), ("answered", until_sent)):
                self._database.execute(
                    f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)",  # noqa: S608 - our own names
                    [*self._session, key, value],
                )

    def sends(self, key: str) -> None:
        """Record that an execution is about to begin: from now on, only `end` says how it has ended.

        Raises:
            LedgerUnavailable: when the record cannot be written; the execution must not begin.
        """
        with self._must_write():
            self._delete("answered", key)

    @contextmanager
    def _must_write(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            log.exception("the ledger cannot be written")
            raise LedgerUnavailable from error

    def _delete(self, table: str, key: str) -> None:
        self._database.execute(
            f"DELETE FROM {table} WHERE tenant = ? AND name = ? AND key = ?",  # noqa: S608 - our own names
            [*self._session, key],
        )

    def end(self, key: str, record: bytes) -> None:
        """Record how an execution has ended. A failure to write is only logged: the end is not known later."""
        with _only_logged():
            self._database.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)", [*self._session, key, record])

    def forget(self, key: str) -> None:
        """Remove the record of an execution that has not begun, or whose result is no longer kept."""
        with _only_logged():
            for table in _OF_KEYS:
                self._delete(table, key)


class Ledger:
    """The session and sandbox records of one gateway."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Open the database. If it is damaged, its sessions are lost, and an empty database replaces it.

        Args:
            path: path of the database. It is made if absent. None means in memory: no later gateway finds the records.
            clock: function that returns seconds since 1970.
        """
        self.clock = clock
        self._database = open_or_replace(path, _SCHEMA + ended.SCHEMA)
        self._sessions = _RecordTable(self._database, SessionRecord)
        self._sandboxes = _RecordTable(self._database, SandboxRecord)
        self._snapshots = _RecordTable(self._database, SnapshotRecord)
        self._ended = EndedSessions(self._database)

    def sessions(self) -> list[SessionRecord]:
        """Return all sessions, oldest first."""
        return list(self._sessions.all())

    def sandboxes(self) -> list[SandboxRecord]:
        """Return all sandboxes, oldest first."""
        return list(self._sandboxes.all())

    def snapshots(self) -> list[SnapshotRecord]:
        """Return all snapshots, oldest first."""
        return list(self._snapshots.all())

    def keep(self, record: SessionRecord | SandboxRecord | SnapshotRecord) -> None:
        """Write the present record of a session, sandbox or snapshot.

        Raises:
            LedgerUnavailable: when the record cannot be written.
        """
        try:
            if isinstance(record, SandboxRecord):
                self._sandboxes.put(record)
                return
            if isinstance(record, SnapshotRecord):
                self._snapshots.put(record)
                return
            with self._transaction():
                self._sessions.put(record)
                self._ended.remove(record.key)
        except sqlite3.Error as error:
            log.exception("the ledger cannot be written")
            raise LedgerUnavailable from error

    def end(self, key: SessionKey, reason: str, place: str = "") -> None:
        """Record the end of a session. A failure to write is only logged: sessions must end on a full disk, too.

        An end that could not be written is noticed by the next gateway, which finds no container of the session.

        Args:
            key: key of the session.
            reason: reason that a returning client gets.
            place: place whose next session reports this end; see `SessionSpec`.
        """
        with _only_logged():
            self._database.run_deletion(lambda: self._end(key, reason, place))

    def _end(self, key: SessionKey, reason: str, place: str) -> None:
        with self._transaction():
            self._sessions.delete(key)
            for table in _OF_KEYS:
                self._database.execute(f"DELETE FROM {table} WHERE tenant = ? AND name = ?", _pair(key))  # noqa: S608 - our own names
            self._ended.add(key, reason, place)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._database.transaction():
                yield
        except sqlite3.Error:
            self._ended.count()
            raise

    def end_sandbox(self, key: SessionKey) -> None:
        """Record the end of a sandbox, like `end`."""
        with _only_logged():
            self._database.run_deletion(lambda: self._sandboxes.delete(key))

    def forget_snapshot(self, key: SessionKey) -> None:
        """Delete the record of a snapshot.

        Raises:
            LedgerUnavailable: when that cannot be written.
        """
        try:
            self._database.run_deletion(lambda: self._snapshots.delete(key))
        except sqlite3.Error as error:
            log.exception("the ledger cannot be written")
            raise LedgerUnavailable from error

    def idempotency_keys(self, key: SessionKey) -> IdempotencyKeys:
        """Return the idempotency keys of a session's executions."""
        return IdempotencyKeys(self._database, key)

    def why_ended(self, key: SessionKey) -> str | None:
        """Return why the last session with this key ended. None if there was none, or its end is forgotten."""
        return self._ended.why(key)

    def last_end_at(self, tenant: str, place: str) -> tuple[SessionKey, str] | None:
        """Return the last session of a place that has ended, and why. None if another session has reported its end."""
        return self._ended.last_at(tenant, place) if place else None

    def forget_end(self, key: SessionKey) -> None:
        """Forget why a session ended, because a later session reports it."""
        with _only_logged():
            self._database.run_deletion(lambda: self._ended.remove(key))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _pair(key: SessionKey) -> list[str]:
    return [key.tenant, key.name]
