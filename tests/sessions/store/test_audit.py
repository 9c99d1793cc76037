"""The audit: one record before and one after each execution, and every change of a record is detected."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
import structlog
from structlog.testing import capture_logs

from sessions.model.errors import AuditUnavailable
from sessions.model.tasks import spawn
from sessions.model.values import Asker, SessionKey
from sessions.store import audit as module
from sessions.store import audit_search
from sessions.store.audit import Audit
from sessions.store.audit_search import Search
from sessions.store.database import LOCKED_MAX, Database
from sessions.store.records import FIRST, UNKNOWN, UNSENT, Begin, End, digest_of, read
from sessions.tenants.audit_disk import COST
from tests.fakes import Clock, World, run, until
from tests.figures import hold

KEY = SessionKey("acme", "s1")
DAY = 86400.0
CODE = "print('a secret')"
OK = End(outcome="ok", duration_ms=1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@pytest.fixture
def audit(path: Path, connections: list[Database]) -> Iterator[Audit]:
    opened = Audit(path, lambda: 1000.5)
    yield opened
    opened.close()


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert database.execute(statement, values).rowcount > 0


def test_a_cell_has_a_begin_and_an_end(audit: Audit) -> None:
    execution = audit.begin(KEY, "python", CODE)
    audit.end(execution, OK)
    begin, end = audit.records()
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    assert begin.what == Begin(tenant="acme", session="s1", language="python", code_sha256=digest)
    assert end.what == OK
    assert begin.execution == end.execution == execution
    assert (begin.seq, end.seq, begin.at) == (1, 2, 1000.5)
    assert len({FIRST, begin.digest, end.digest}) == 3


def test_the_audit_says_who_asked(audit: Audit) -> None:
    asker = Asker(key_id="9af153f7", address="203.0.113.7", dialect="e2b", request_id="e14c2d94f2b0236a")
    audit.end(audit.begin(KEY, "python", CODE, asker), OK)
    (account,) = audit.latest(1)
    assert {name: getattr(account.begin, name) for name in asdict(asker)} == asdict(asker)


#: a record as the last version wrote it
OF_LAST_VERSION = (
    b'{"at":7.5,"event":"begin","execution":"0a","tenant":"acme","session":"s1","language":"python","code_sha256":"1b"}'
)


def test_an_audit_of_the_last_version_is_continued(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as before:
        before.execute("PRAGMA journal_mode=WAL")
        before.executescript(SCHEMA_OF_LAST_VERSION)
        values = ["0a", "begin", OF_LAST_VERSION, digest_of(FIRST, OF_LAST_VERSION)]
        before.execute("INSERT INTO audit (execution, event, record, digest) VALUES (?, ?, ?, ?)", values)
    with closing(Audit(path)) as audit:
        audit.end(audit.begin(KEY, "python", CODE, Asker(address="203.0.113.7")), OK)
        old, ended, new, _ = [record.what for record in audit.records()]
        assert old == Begin(tenant="acme", session="s1", language="python", code_sha256="1b")
        assert ended == End(outcome=UNKNOWN)
        assert isinstance(new, Begin)
        assert new.address == "203.0.113.7"
        assert [account.begin.address for account in audit.latest(9)] == ["203.0.113.7", None]


SCHEMA_OF_LAST_VERSION = """
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY, execution TEXT NOT NULL, event TEXT NOT NULL, record BLOB NOT NULL, digest TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX audit_once ON audit (execution, event);
CREATE INDEX audit_tenant ON audit (json_extract(CAST(record AS TEXT), '$.tenant'), seq) WHERE event = 'begin';
CREATE INDEX audit_cut ON audit (seq) WHERE event = 'cut';
"""


def test_the_audit_holds_no_code_and_only_its_user_can_read_it(audit: Audit, path: Path) -> None:
    audit.begin(KEY, "python", CODE)
    for file in path.parent.iterdir():
        assert b"secret" not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


def test_an_execution_that_a_gateway_left_open_ends_once(path: Path) -> None:
    with closing(Audit(path)) as before:
        ended, left = before.begin(KEY, "python", "1"), before.begin(KEY, "python", "2")
        before.end(ended, OK)
    for _ in range(2):
        with closing(Audit(path)) as after:
            ends = {record.execution: record.what for record in after.records() if isinstance(record.what, End)}
            assert ends == {ended: OK, left: End(outcome=UNKNOWN)}
            assert sum(1 for _ in after.records()) == 4


def test_the_chain_continues_over_restarts(path: Path) -> None:
    for _ in range(3):
        with closing(Audit(path)) as audit:
            audit.end(audit.begin(KEY, "python", "1"), OK)
    with closing(Audit(path)) as audit:
        assert [record.seq for record in audit.records()] == list(range(1, 7))


@pytest.mark.parametrize(
    ("statement", "record"),
    [
        ("UPDATE audit SET record = CAST(replace(record, 'acme', 'evil') AS BLOB) WHERE seq = 3", 3),
        ("UPDATE audit SET digest = (SELECT digest FROM audit WHERE seq = 1) WHERE seq = 4", 4),
        ("DELETE FROM audit WHERE seq = 2", 2),
        ("DELETE FROM audit WHERE seq = 1", 1),
        ("UPDATE audit SET seq = 10 WHERE seq = 6", 6),
        ("UPDATE audit SET execution = 'another' WHERE seq = 2", 2),
        ("UPDATE audit SET event = 'cut', execution = 'another' WHERE seq = 2", 2),
    ],
)
def test_a_changed_or_removed_record_is_detected(audit: Audit, path: Path, statement: str, record: int) -> None:
    for _ in range(3):
        audit.end(audit.begin(KEY, "python", "1"), OK)
    assert sum(1 for _ in audit.records()) == 6
    change(path, statement)
    with pytest.raises(ValueError, match=f"record {record} of the audit"):
        list(audit.records())


# -- full disk and locked database -----------------------------------------------------------------------------


def fill(audit: Audit, connection: Database) -> None:
    """Leave no room for one more record."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with suppress(AuditUnavailable):
        for _ in range(1000):
            audit.begin(KEY, "python", "fills the last page")
        pytest.fail("there was room without end")


def make_room(connection: Database) -> None:
    connection.execute(f"PRAGMA max_page_count = {2**30}")


def test_a_full_disk_refuses_executions_and_delays_end_records(audit: Audit, connections: list[Database]) -> None:
    executions = [audit.begin(KEY, "python", "1") for _ in range(3)]
    fill(audit, connections[0])
    before = sum(1 for _ in audit.records())
    for execution in executions:
        audit.end(execution, OK)
    with pytest.raises(AuditUnavailable):
        audit.begin(KEY, "python", "2")
    assert sum(1 for _ in audit.records()) == before
    make_room(connections[0])
    again = audit.begin(KEY, "python", "3")
    found = [(record.execution, type(record.what)) for record in audit.records()][before:]
    assert found == [*((execution, End) for execution in executions), (again, Begin)]


def test_ends_that_wait_are_written_when_the_gateway_stops(path: Path, connections: list[Database]) -> None:
    audit = Audit(path)
    execution = audit.begin(KEY, "python", "1")
    fill(audit, connections[0])
    open_ones = sum(account.end is None for account in audit.latest(2000))
    audit.end(execution, OK)
    assert sum(account.end is None for account in audit.latest(2000)) == open_ones
    make_room(connections[0])
    audit.close()
    assert [record.what for record in read(path)][-1] == OK


def test_a_full_disk_and_its_end_are_logged_once(audit: Audit, connections: list[Database]) -> None:
    with structlog.testing.capture_logs() as logs:
        fill(audit, connections[0])
        for _ in range(10):
            with pytest.raises(AuditUnavailable):
                audit.begin(KEY, "python", "1")
        make_room(connections[0])
        for _ in range(10):
            audit.begin(KEY, "python", "1")
    assert [entry["log_level"] for entry in logs] == ["error", "info"]
    assert sum(1 for _ in audit.records()) > 10


@pytest.mark.full
def test_a_locked_database_does_not_block_the_event_loop(audit: Audit, path: Path) -> None:
    audit.end(audit.begin(KEY, "python", "1"), OK)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(AuditUnavailable):
            audit.begin(KEY, "python", "1")
        hold("a locked audit's refusal", time.monotonic() - began, LOCKED_MAX)
        with pytest.raises(AuditUnavailable):
            audit.cut(-1)
        other.execute("ROLLBACK")
    assert audit.cut(-1)
    audit.begin(KEY, "python", "1")
    assert len(shape(path)) == 2


# -- room ------------------------------------------------------------------------------------------------------


def test_an_execution_takes_no_more_than_is_counted_for_it_however_long_its_names(path: Path) -> None:
    key, number = SessionKey("t" * 64, "s" * 64), 5000
    longest = Asker(key_id="k" * 10, address=":".join(["ffff"] * 8), dialect="agentrun", request_id="r" * 64)
    end = End(outcome="interrupted", duration_ms=123456.789, error="SB005", output_bytes=10**9, memory=10**12)
    with closing(Audit(path)) as audit:
        for _ in range(number):
            audit.end(audit.begin(key, "javascript", CODE, longest), end)
    assert 0.9 * COST < path.stat().st_size / number <= COST


def test_room_is_what_the_disk_has_free_and_what_removed_records_left(
    audit: Audit, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10**6
    monkeypatch.setattr(module, "room_in", lambda directory: free if directory == path.parent else 0)
    for _ in range(500):
        audit.end(audit.begin(KEY, "python", "1"), OK)
    assert audit.room() == free
    assert audit.cut(-1)
    assert free + 200_000 < audit.room() < free + 500 * COST
    monkeypatch.setattr(module, "room_in", Mock(side_effect=OSError))
    with pytest.raises(AuditUnavailable):
        audit.room()


def test_the_newest_executions_are_counted_by_tenant(audit: Audit) -> None:
    for tenant in ("old", "evil", "acme", "evil", "evil"):
        audit.end(audit.begin(SessionKey(tenant, "s"), "python", "1"), OK)
    assert audit.newest(4) == {"evil": 3, "acme": 1}
    assert audit.newest(100) == {"evil": 3, "acme": 1, "old": 1}
    assert audit.newest(0) == {}


# -- old records -----------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def aging(path: Path, clock: Clock) -> Iterator[Audit]:
    """An audit with three executions, each a day after the one before; the second has no end."""
    audit = Audit(path, clock)
    for number in range(3):
        execution = audit.begin(KEY, "python", str(number))
        if number != 1:
            audit.end(execution, OK)
        clock.passes(DAY)
    yield audit
    audit.close()


def shape(path: Path) -> list[tuple[int, str]]:
    """Return the records, which must form one chain."""
    return [(record.seq, type(record.what).__name__) for record in read(path)]


def test_old_records_are_removed_and_the_chain_continues(aging: Audit, path: Path) -> None:
    assert not aging.cut(3.5 * DAY)
    assert aging.cut(2.5 * DAY)
    rest = [(3, "Begin"), (4, "Begin"), (5, "End"), (6, "Cut")]
    assert shape(path) == rest
    assert not aging.cut(2.5 * DAY)
    assert not aging.cut(0)  # the next execution has not ended
    (running,) = (account.execution for account in aging.latest(10) if account.end is None)
    aging.end(running, OK)
    assert shape(path) == [*rest, (7, "End")]
    assert not aging.cut(0.5 * DAY)  # its end is not old


def test_an_old_cut_record_is_removed_by_the_next_cut(aging: Audit, path: Path, clock: Clock) -> None:
    aging.cut(2.5 * DAY)
    (running,) = (account.execution for account in aging.latest(10) if account.end is None)
    aging.end(running, OK)
    clock.passes(DAY)
    assert aging.cut(0.5 * DAY)
    assert shape(path) == [(8, "Cut")]
    aging.end(aging.begin(KEY, "python", "1"), OK)
    assert shape(path) == [(8, "Cut"), (9, "Begin"), (10, "End")]


def test_one_cut_removes_a_limited_number_of_records(audit: Audit, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CUT_MAX", 4)
    for _ in range(5):
        audit.end(audit.begin(KEY, "python", "1"), OK)
    assert audit.cut(-1)
    assert shape(path)[0] == (5, "Begin")
    assert audit.cut(-1)
    assert shape(path)[0] == (9, "Begin")
    assert audit.cut(-1)
    assert not audit.cut(-1)
    assert {kind for _, kind in shape(path)} == {"Cut"}


@pytest.mark.parametrize(
    ("statement", "record"),
    [
        ("DELETE FROM audit WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq <= 4", 3),
        ("UPDATE audit SET record = CAST(replace(record, '\"through\":2', '\"through\":3') AS BLOB) WHERE seq = 6", 4),
        ("DELETE FROM audit WHERE event = 'cut'", 1),
    ],
)
def test_removing_more_than_the_cut_says_is_detected(aging: Audit, path: Path, statement: str, record: int) -> None:
    aging.cut(2.5 * DAY)
    assert shape(path)
    change(path, statement)
    with pytest.raises(ValueError, match=f"record {record} of the audit"):
        shape(path)


def test_a_forged_cut_record_is_detected(aging: Audit, path: Path) -> None:
    aging.cut(2.5 * DAY)
    *_, last = read(path)
    digest = next(record.digest for record in read(path) if record.seq == 4)
    forged = orjson.dumps({"at": 0, "through": 4, "digest": digest})
    change(path, "UPDATE audit SET record = ? WHERE seq = 6", forged)
    change(path, "DELETE FROM audit WHERE seq <= 4")
    with pytest.raises(ValueError, match="record 6 of the audit"):
        list(read(path))
    assert last.seq == 6


async def test_old_records_are_removed_in_the_background(aging: Audit, path: Path) -> None:
    keeping = spawn(aging.keep_removing_old(2.5 * DAY, interval=60), "retention")
    await until(lambda: shape(path)[0] == (3, "Begin"))
    keeping.cancel()
    await asyncio.wait({keeping})


async def test_removing_old_records_continues_after_a_failure(
    aging: Audit, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(aging, "_oldest", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
        keeping = spawn(aging.keep_removing_old(2.5 * DAY, interval=0.001), "retention")
        await until(lambda: logs)
    assert logs[0]["task"] == "retention"
    await until(lambda: shape(path)[0] == (3, "Begin"))
    keeping.cancel()
    await asyncio.wait({keeping})


# -- queries ---------------------------------------------------------------------------------------------------


def test_executions_are_listed_newest_first_in_pages(audit: Audit) -> None:
    executions = [audit.begin(SessionKey(tenant, "s1"), "python", "1") for tenant in ("acme", "umbrella") * 3]
    for execution in executions[:-1]:
        audit.end(execution, OK)
    assert [account.execution for account in audit.latest(10)] == executions[::-1]
    newest, *_, oldest = audit.latest(10)
    assert (newest.end, newest.ended_at) == (None, None)
    assert (oldest.seq, oldest.end, oldest.began_at, oldest.ended_at) == (1, OK, 1000.5, 1000.5)
    mine = audit.latest(2, Search(tenant="acme"))
    assert [account.execution for account in mine] == [executions[4], executions[2]]
    assert [account.execution for account in audit.latest(2, Search(tenant="acme", before=mine[-1].seq))] == [
        executions[0]
    ]
    assert audit.latest(10, Search(tenant="nobody")) == []


def test_executions_are_searched_for(audit: Audit) -> None:
    first, second, running = [audit.begin(SessionKey("acme", name), "python", "1") for name in ("a", "b", "b")]
    audit.end(first, OK)
    audit.end(second, End(outcome="error"))

    def found(**search: Any) -> list[str]:
        return [account.execution for account in audit.latest(10, Search(**search))]

    assert found() == [running, second, first]
    assert found(session="b") == [running, second]
    assert found(session="b", outcome="error") == [second]
    assert found(outcome="ok") == [first]
    began = audit.latest(1)[0].began_at
    assert found(since=began) == [running, second, first]
    assert found(since=began + 0.001) == []


@pytest.mark.usefixtures("audit")
def test_a_tenants_executions_are_found_without_reading_all(path: Path) -> None:
    search = f"EXPLAIN QUERY PLAN {audit_search._EXECUTIONS}{audit_search._MORE['tenant']}{audit_search._NEWEST}"
    with closing(sqlite3.connect(path)) as database:
        plan = database.execute(search, {"tenant": "acme", "before": 1, "most": 1}).fetchall()
    assert "audit_tenant" in str(plan)


def test_no_execution_is_shown_to_end_before_it_began(path: Path, clock: Clock) -> None:
    with closing(Audit(path, clock)) as audit:
        execution = audit.begin(KEY, "python", "1")
        began = clock.now
        clock.passes(-DAY)
        audit.end(execution, OK)
        assert [(shown.began_at, shown.ended_at) for shown in audit.latest(1)] == [(began, began)]
        assert [record.at for record in audit.records()] == [began, began - DAY]


def test_recently_ended_executions_are_listed_in_order(aging: Audit, clock: Clock) -> None:
    ended = aging.ended_since(clock.now - 3.5 * DAY)
    assert [(round((clock.now - at) / DAY), begin.tenant, end) for at, begin, end in ended] == [
        (3, "acme", OK),
        (1, "acme", OK),
    ]
    assert len(aging.ended_since(clock.now - 1.5 * DAY)) == 1
    assert aging.ended_since(clock.now) == []


def test_older_records_without_byte_counts_are_read(audit: Audit, path: Path) -> None:
    execution = audit.begin(KEY, "python", "1")
    old = orjson.dumps({"at": 1.0, "event": "end", "execution": execution, "outcome": "ok", "duration_ms": 1.5})
    with closing(sqlite3.connect(path)) as database, database:
        (last,) = database.execute("SELECT digest FROM audit ORDER BY rowid DESC LIMIT 1").fetchone()
        digest = hashlib.sha256(last.encode() + old).hexdigest()
        database.execute(
            "INSERT INTO audit (execution, event, record, digest) VALUES (?, 'end', ?, ?)", [execution, old, digest]
        )
    assert [record.what for record in read(path)][-1] == OK
    assert audit.latest(1)[0].end == OK


# -- executions of sessions ------------------------------------------------------------------------------------


async def test_a_session_runs_nothing_without_an_audit_record(world: World) -> None:
    session = await world.session()
    world.refuses = AuditUnavailable()
    with pytest.raises(AuditUnavailable):
        await run(session, "1")
    assert world.backend.kernel.executed == []
    world.refuses = None
    assert (await run(session, "1")).state == "new"


def test_an_execution_that_was_never_sent_has_an_end() -> None:
    assert End.of(None) == End(outcome=UNSENT)
