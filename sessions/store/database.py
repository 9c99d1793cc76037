"""Opens the SQLite databases of the state directory, all in the same way.

Only the gateway's user can read them. A commit does not wait for the disk: the thread of `sync.py` syncs it later.
A command has no such thread; its database is synced when it is closed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import structlog

from sessions.model.errors import LedgerUnavailable
from sessions.store.reserve import Reserve

log = structlog.get_logger()

#: seconds to wait while another process, or the thread of `sync.py`, writes the same database
LOCKED_MAX = 0.5
#: pages in the write-ahead log from which a connection syncs it on its own; only reached without the thread
AUTOCHECKPOINT = 65_536
#: no added columns
NOTHING: Mapping[str, Mapping[str, str]] = MappingProxyType({})

T = TypeVar("T")


class DatabaseUnusable(OSError):
    """A database is damaged, or the disk that holds it is full or fails."""


class Database(sqlite3.Connection):
    """A connection to one database. It commits each statement that is not in a `transaction`."""

    #: space for deletions on a full disk. None means that the database is in memory.
    _reserve: Reserve | None = None

    def use_reserve(self, reserve: Reserve) -> None:
        """Use this space for deletions on a full disk."""
        self._reserve = reserve

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything inside the `with` block, or nothing.

        Raises:
            sqlite3.Error: when the database cannot be written.
        """
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        finally:
            if self.in_transaction:
                self.execute("ROLLBACK")

    def run_deletion(self, delete: Callable[[], T]) -> T:
        """Delete something, also on a full disk. A deletion needs some space, too, and may then use the reserve.

        Args:
            delete: deletes everything or nothing. It is called a second time if the disk is full.

        Raises:
            sqlite3.Error: when the database cannot be written.
            OSError: when there is no reserve.
        """
        try:
            return delete()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL or self._reserve is None:
                raise
        with self._reserve.lent():
            return delete()


def connect(path: Path | None, wait: float, autocheckpoint: int) -> Database:
    """Connect to a database.

    Args:
        path: path of the database. None means in memory.
        wait: seconds to wait while another connection writes.
        autocheckpoint: pages in the write-ahead log from which a commit syncs it. 0 means never.

    Raises:
        sqlite3.Error: when the connection fails.
    """
    database = sqlite3.connect(path or ":memory:", wait, isolation_level=None, factory=Database)
    try:
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint={autocheckpoint}")
    except sqlite3.Error:
        database.close()
        raise
    return database


def open_database(path: Path | None, schema: str, added: Mapping[str, Mapping[str, str]] = NOTHING) -> Database:
    """Open a database. It is made if absent.

    Args:
        path: path of the database. None means in memory.
        schema: statements that make missing tables and indices.
        added: declarations of columns that an earlier version did not have, by table and column.

    Raises:
        DatabaseUnusable: when the database is damaged, or the disk is full or fails.
    """
    with _unusable(path):
        database = _open(path, schema)
        try:
            if any(_lacking(database, added)):
                with database.transaction():  # another process may be doing the same
                    for table, column in [*_lacking(database, added)]:
                        database.execute(f"ALTER TABLE {table} ADD COLUMN {column} {added[table][column]}")
        except sqlite3.Error:
            database.close()
            raise
        return database


def _lacking(database: Database, added: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each table and column that the database does not have yet."""
    for table, columns in added.items():
        present = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
        yield from ((table, column) for column in columns if column not in present)


def open_or_replace(path: Path | None, schema: str) -> Database:
    """Open a database whose content is not essential. A damaged database is renamed, and an empty one replaces it.

    Raises:
        DatabaseUnusable: when the disk is full or fails.
    """
    with _unusable(path):
        try:
            return _open_whole(path, schema)
        except sqlite3.OperationalError:
            raise  # not damaged
        except sqlite3.DatabaseError as error:
            if path is None:
                raise
            _set_aside(path, error)
            return _open_whole(path, schema)


def _open(path: Path | None, schema: str) -> Database:
    if path is not None:
        path.touch(mode=0o600)  # SQLite makes the files beside it with the same mode
        path.chmod(0o600)
    database = connect(path, LOCKED_MAX, AUTOCHECKPOINT)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(schema)
    except sqlite3.Error:
        database.close()
        raise
    if path is not None:
        database.use_reserve(Reserve(path.parent))
    return database


def _open_whole(path: Path | None, schema: str) -> Database:
    database = _open(path, schema)
    try:
        if (found := database.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _set_aside(path: Path, error: sqlite3.Error) -> None:
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    log.error("a database is damaged: its content is lost", path=str(aside), error=str(error))
    for suffix in ("", "-wal", "-shm"):  # otherwise the new database would read the log of the damaged one
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{suffix}").rename(f"{aside}{suffix}")


@contextmanager
def _unusable(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseUnusable(f"the database {path} cannot be used: {error}") from error


def read_only(path: Path) -> sqlite3.Connection:
    """Open a separate connection that can only read. A gateway may write the database meanwhile."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


@contextmanager
def saving(what: str) -> Iterator[None]:
    """Turn a failure to write, inside the `with` block, into an error for clients.

    Raises:
        LedgerUnavailable: when the disk is full or fails, or another process holds the database.
    """
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerUnavailable(f"{what} cannot be saved") from error
