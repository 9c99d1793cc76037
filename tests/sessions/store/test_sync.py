"""The event loop's connections sync nothing: a thread copies their commits into the databases."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sessions.store import sync as module
from sessions.store.database import Database, open_database
from sessions.store.reserve import RESERVE
from sessions.store.sync import Syncer, WriteAheadLog
from tests.fakes import until

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER, padding BLOB)"
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    """A database as the event loop uses it."""
    with closing(open_database(path, SCHEMA)) as opened:
        yield opened


@pytest.fixture
def log(path: Path, database: Database) -> Iterator[WriteAheadLog]:
    assert not database.in_transaction
    with closing(WriteAheadLog(path)) as opened:
        opened.sync()
        yield opened


def commit(database: Database, number: int, pages: int = 0) -> None:
    database.execute("INSERT INTO numbers VALUES (?, zeroblob(?))", [number, pages * PAGE])


def salt(path: Path) -> bytes:
    """Return the number that changes when a log is overwritten from its beginning, which syncs its first page.

    Source: SQLite, "Database File Format", the WAL header.
    """
    with path.with_name(f"{path.name}-wal").open("rb") as file:
        return file.read(32)[16:20]


def copied(path: Path) -> list[int]:
    """Return what is in the database's own file, without its log."""
    alone = path.with_name("alone")
    shutil.copy(path, alone)
    with closing(sqlite3.connect(alone)) as opened, suppress(sqlite3.OperationalError):  # not even the table
        return [number for (number,) in opened.execute("SELECT number FROM numbers ORDER BY number")]
    return []


def test_the_loops_connection_copies_nothing_itself(path: Path, database: Database) -> None:
    commit(database, 1, pages=2000)  # twice of what SQLite copies on its own
    commit(database, 2)
    assert path.stat().st_size < 10 * PAGE


def test_a_checkpoint_copies_what_was_committed(path: Path, database: Database, log: WriteAheadLog) -> None:
    for number in range(3):
        commit(database, number)
        log.sync()
        assert copied(path) == [*range(number + 1)]


def test_a_commit_after_a_checkpoint_does_not_overwrite_the_log(
    path: Path, database: Database, log: WriteAheadLog
) -> None:
    before = salt(path)
    for number in range(5):
        commit(database, number)
        log.sync()
        commit(database, number + 100)
        assert salt(path) == before
    log.sync()
    log.close()
    commit(database, 7)  # the control: nothing holds the log now
    assert salt(path) != before


def test_a_large_log_is_overwritten_by_the_thread(path: Path, database: Database, log: WriteAheadLog) -> None:
    before = salt(path)
    commit(database, 1, pages=module.LARGE + 10)
    assert salt(path) == before
    log.sync()
    after = salt(path)
    assert after != before
    size = path.with_name("some.db-wal").stat().st_size
    commit(database, 2, pages=module.LARGE // 2)
    log.sync()
    assert salt(path) == after
    assert path.with_name("some.db-wal").stat().st_size == size
    assert copied(path) == [1, 2]


def test_on_a_full_disk_also_a_small_log_is_overwritten(path: Path, database: Database, log: WriteAheadLog) -> None:
    before = salt(path)
    commit(database, 1)
    log.sync()
    assert salt(path) == before
    log.sync(reuse=True)
    after = salt(path)
    assert after != before
    log.sync(reuse=True)
    assert salt(path) == after, "nothing was written since"
    assert copied(path) == [1]


@pytest.mark.parametrize(("pages", "overwritten"), [(module.LARGE + 10, False), (module.HUGE + 10, True)])
def test_only_a_huge_log_is_overwritten_while_others_write(
    path: Path,
    database: Database,
    log: WriteAheadLog,
    monkeypatch: pytest.MonkeyPatch,
    pages: int,
    *,
    overwritten: bool,
) -> None:
    before = salt(path)
    commit(database, 1, pages)
    versions = iter(range(1000, 2000))
    monkeypatch.setattr(module, "_version", lambda _: next(versions))
    log.sync()
    assert (salt(path) != before) == overwritten
    assert copied(path) == [1]


def test_a_reader_delays_a_checkpoint_and_loses_none(path: Path, database: Database, log: WriteAheadLog) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (0,)
        commit(database, 1)
        log.sync()
        assert copied(path) == []
    log.sync()
    assert copied(path) == [1]


async def test_the_thread_syncs_all_databases_until_it_is_closed(
    tmp_path: Path, path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    other = open_database(tmp_path / "other.db", SCHEMA)
    syncer = Syncer(tmp_path)
    syncer.start()
    commit(database, 1)
    commit(other, 2)
    await until(lambda: (copied(path), copied(tmp_path / "other.db")) == ([1], [2]))
    monkeypatch.setattr(module, "INTERVAL", 60)
    commit(database, 3)
    syncer.close()
    assert copied(path) == [1, 3]
    assert "checkpoints" not in [thread.name for thread in threading.enumerate()]
    other.close()


async def test_a_failure_is_logged_once_and_ends_nothing(
    tmp_path: Path, path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.001)
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 100)
    with capture_logs() as logs:
        syncer = Syncer(tmp_path)
        rounds = Mock(wraps=module.disk_full_error)  # asked in each round
        monkeypatch.setattr(module, "disk_full_error", rounds)
        syncer.start()
        await until(lambda: rounds.call_count > 5)
        commit(database, 1)
        await until(lambda: copied(path) == [1])
        syncer.close()
    assert [(entry["log_level"], entry["file"]) for entry in logs] == [("warning", "broken.db")]


async def test_the_thread_makes_the_reserve_and_fills_it_again(tmp_path: Path) -> None:
    reserve = tmp_path / "reserve"
    for size in (0, RESERVE // 2):
        reserve.write_bytes(bytes(size))
        syncer = Syncer(tmp_path)
        syncer.start()
        syncer.close()
        assert reserve.stat().st_blocks * 512 >= RESERVE
