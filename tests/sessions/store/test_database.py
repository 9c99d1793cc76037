"""All databases are opened in the same way."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import Mock

import pytest

from kernel_gateway.identity.keystore import KeyStore
from sessions.model.errors import LedgerUnavailable
from sessions.providers.store import ProviderStore
from sessions.store.audit import Audit
from sessions.store.database import Database, DatabaseUnusable, open_database, open_or_replace, saving
from sessions.store.ledger import Ledger
from sessions.store.reserve import RESERVE, Reserve
from sessions.store.templates import Templates
from sessions.store.tenant_limits import TenantLimitStore
from sessions.store.usage_store import UsageStore


class Store(Protocol):
    def close(self) -> None: ...


STORES: dict[str, Callable[[Path], Store]] = {
    "audit": lambda directory: Audit(directory / "audit.db"),
    "keys": KeyStore,
    "ledger": lambda directory: Ledger(directory / "ledger.db"),
    "providers": ProviderStore,
    "usage": lambda directory: UsageStore(directory / "usage.db"),
    "tenant limits": lambda directory: TenantLimitStore(directory / "tenants.db"),
    "templates": lambda directory: Templates(directory / "templates.db", "default"),
}
SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_every_store_opens_its_database_in_the_same_way(
    store: Any, tmp_path: Path, connections: list[Database]
) -> None:
    umask = os.umask(0)
    try:
        opened = store(tmp_path)
        asked = ("journal_mode", "synchronous", "wal_autocheckpoint", "busy_timeout")
        (connection,) = connections
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
        assert found == ["wal", 1, 65_536, 500]
        files = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        assert len(files) >= 3
        assert set(files.values()) == {0o600}
        opened.close()
    finally:
        os.umask(umask)


def test_a_new_database_is_at_no_moment_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    connect = sqlite3.connect

    def noting(path: Path, *given: Any, **named: Any) -> Any:
        modes.append(path.stat().st_mode & 0o777)
        return connect(path, *given, **named)

    monkeypatch.setattr(sqlite3, "connect", noting)
    (tmp_path / "old.db").touch(0o644)
    for name in ("new.db", "old.db"):
        open_database(tmp_path / name, SCHEMA).close()
    assert modes == [0o600, 0o600]


def test_a_damaged_database_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    path.write_bytes(b"SQLite format 3\0" + b"garbage" * 1000)
    with pytest.raises(DatabaseUnusable, match=r"some\.db cannot be used"):
        open_database(path, SCHEMA)
    assert [file.name for file in tmp_path.iterdir()] == ["some.db"]
    with closing(open_or_replace(path, SCHEMA)) as database:
        assert database.execute("SELECT * FROM numbers").fetchall() == []
    assert len([*tmp_path.glob("some.db.damaged-*")]) == 1


def test_a_transaction_writes_everything_or_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with database.transaction():
            database.execute("INSERT INTO numbers VALUES (1)")
            raise ZeroDivisionError

    with closing(open_database(tmp_path / "some.db", SCHEMA)) as database:
        with pytest.raises(ZeroDivisionError):
            fail()
        with database.transaction():
            database.execute("INSERT INTO numbers VALUES (2)")
        assert database.execute("SELECT * FROM numbers").fetchall() == [(2,)]


def test_a_write_that_fails_is_an_error_for_clients() -> None:
    for cause in (sqlite3.OperationalError("disk full"), OSError(28, "no space")):
        with pytest.raises(LedgerUnavailable, match="the key cannot be saved"), saving("the key"):
            raise cause


def test_a_deletion_on_a_full_disk_gets_the_reserve_and_gives_it_back(tmp_path: Path) -> None:
    def size() -> int:
        return (tmp_path / "reserve").stat().st_size

    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    free: list[int] = []

    def delete() -> str:
        free.append(RESERVE - size())
        if len(free) == 1:
            raise full
        return "deleted"

    with closing(open_database(tmp_path / "some.db", SCHEMA)) as database:
        Reserve(tmp_path).fill()
        assert database.run_deletion(delete) == "deleted"
        assert (free, size()) == ([0, RESERVE], RESERVE)


def test_nobody_fills_the_reserve_while_it_is_lent(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with reserve.lent():
            filling = pool.submit(reserve.fill)
            with pytest.raises(TimeoutError):
                filling.result(0.1)
            assert (tmp_path / "reserve").stat().st_size == 0
        filling.result(60)


def test_only_a_full_disk_gets_the_reserve(tmp_path: Path) -> None:
    attempts = Mock(side_effect=sqlite3.OperationalError("disk I/O error"))
    attempts.side_effect.sqlite_errorcode = sqlite3.SQLITE_IOERR
    with closing(open_database(tmp_path / "some.db", SCHEMA)) as database:
        with pytest.raises(sqlite3.OperationalError):
            database.run_deletion(attempts)
        assert attempts.call_count == 1
