"""Syncs the databases of a state directory from a thread, so that the event loop never waits for a disk.

The thread also checks whether the disk has room for further records.

A commit appends to the write-ahead log without waiting for the disk. A sync (SQLite says *checkpoint*) writes the log
to the disk, copies it into the database, and writes the database to the disk. After a complete sync, the next commit
would overwrite the log from its beginning, and wait until its first page is on the disk. A reading transaction, which
is always open, prevents that. So the log grows until this thread overwrites it, if possible at a moment in which no
other connection writes. Source: SQLite, "Write-Ahead Logging".
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import structlog

from sessions.model.errors import LedgerUnavailable
from sessions.store.database import LOCKED_MAX, connect
from sessions.store.reserve import Reserve, room_in

log = structlog.get_logger()

#: seconds between two syncs; if the machine loses power, the records of this time are lost
INTERVAL = 1.0
#: The log is overwritten from so many pages on at a moment without writers, and from so many at any moment.
LARGE = 1000
HUGE = 32_768
#: syncs one after the other, to find a moment without writers; each has less to copy than the one before
TRIES = 5
#: seconds for which the thread may block writers, while it waits for readers
HELD_MAX = 0.05
#: free bytes below which the disk counts as full: the next records may not fit
ROOM_MIN = 512 * 1024


def disk_full_error(directory: Path) -> LedgerUnavailable | None:
    """Return an error if the disk of a directory is full, or None if it has room."""
    free = room_in(directory)
    if free >= ROOM_MIN:
        return None
    return LedgerUnavailable(f"the disk of the state directory is full: {free // 1024} KiB are free")


class Syncer:
    """The thread that syncs all databases of a directory, and keeps their reserve filled."""

    def __init__(self, directory: Path) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            directory: directory of the databases (`*.db`), which must exist when the thread starts.
        """
        self._directory = directory
        self._reserve = Reserve(directory)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        #: names of the databases, and of the reserve, that cannot be written at present; each is logged once
        self._failing: set[str] = set()
        #: why records may not be written at present. None means that they may.
        self.trouble: LedgerUnavailable | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Sync once more, and wait until the thread has ended."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        logs = [WriteAheadLog(path) for path in sorted(self._directory.glob("*.db"))]
        try:
            while True:
                over = self._closing.is_set()
                self._round(logs)
                if over:
                    return
                self._closing.wait(INTERVAL)
        finally:
            for each in logs:
                each.close()

    def _round(self, logs: list[WriteAheadLog]) -> None:
        try:
            self._reserve.fill()
        except OSError as error:
            self._failed("reserve", error)
        else:
            self._failing.discard("reserve")
        for each in logs:
            try:
                each.sync(reuse="reserve" in self._failing)
            except sqlite3.Error as error:
                each.close()
                self._failed(each.path.name, error)
            else:
                self._failing.discard(each.path.name)
        self.trouble = self._look()

    def _look(self) -> LedgerUnavailable | None:
        try:
            trouble = disk_full_error(self._directory)
        except OSError as error:
            return LedgerUnavailable(f"the disk of the state directory does not answer: {error.strerror}")
        if trouble is None and self._failing:
            trouble = LedgerUnavailable(f"in the state directory cannot be written: {', '.join(sorted(self._failing))}")
        return trouble

    def _failed(self, what: str, error: Exception) -> None:
        if what not in self._failing:
            log.warning("a database cannot be synced, or the reserve not filled", file=what, error=str(error))
        self._failing.add(what)


class WriteAheadLog:
    """The write-ahead log of one database. Only one thread may use it."""

    def __init__(self, path: Path) -> None:
        """Keep the path. The first sync connects to the database.

        Args:
            path: path of the database.
        """
        self.path = path
        self._open = ExitStack()
        self._connections: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        self._seen = 0
        #: pages in the log at the last sync
        self._pages = 0

    def sync(self, *, reuse: bool = False) -> None:
        """Sync all commits since the last call.

        Args:
            reuse: whether the log is overwritten even when it is small, because the disk is full.

        Raises:
            sqlite3.Error: when the sync fails. The caller must then call `close`.
        """
        copier, keeper = self._connections or self._connect()
        large = 0 if reuse else LARGE
        quiet = False
        for _ in range(TRIES):
            version = _version(copier)
            if version == self._seen and self._pages <= large:
                return
            # Between these two calls, nobody overwrites the log either, because the last sync did not copy all of it.
            _let_go(keeper)
            _hold(keeper)
            _, self._pages, copied = copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if quiet := copied == self._pages and _version(copier) == version:
                self._seen = version
                break
        if not quiet and self._pages > HUGE:
            _let_go(keeper)
            copier.execute("PRAGMA wal_checkpoint(RESTART)")  # writers wait until all of it is copied
            _hold(keeper)
        elif not quiet or self._pages <= large:
            return
        copier.execute("BEGIN IMMEDIATE")
        _let_go(keeper)
        _write(copier)
        copier.execute("COMMIT")  # overwrites the log, if nothing was written since the sync
        _hold(keeper)
        self._pages = 0

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        copier, keeper = (
            self._open.enter_context(closing(connect(self.path, wait, autocheckpoint=0)))
            for wait in (HELD_MAX, LOCKED_MAX)
        )
        log_file = self.path.with_name(f"{self.path.name}-wal")
        if not log_file.exists() or not log_file.stat().st_size:
            _write(keeper)  # the first commit in an empty log syncs the log
        _hold(keeper)
        self._seen = self._pages = 0
        self._connections = copier, keeper
        return self._connections

    def close(self) -> None:
        """Close the connections. A later sync connects again."""
        self._open.close()
        self._connections = None


def _version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection commits."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _write(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA user_version = 1")


def _hold(connection: sqlite3.Connection) -> None:
    """Begin a reading transaction, so that no other connection overwrites the log."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def _let_go(connection: sqlite3.Connection) -> None:
    connection.execute("ROLLBACK")
