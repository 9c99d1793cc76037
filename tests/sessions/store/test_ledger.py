"""The ledger: what a gateway knows of the sessions of earlier gateways."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sessions.backends.handshake import new_connection_info
from sessions.model.errors import LedgerUnavailable
from sessions.model.values import Limits, SandboxSpec, SessionKey, SessionSpec, StateChange, StateNotice
from sessions.store import ended
from sessions.store.database import Database
from sessions.store.ledger import Asked, Ledger
from sessions.store.session_records import ContainerRecord, SandboxRecord, SessionRecord

KEY = SessionKey("acme", "s1")
INFO = new_connection_info("tcp", "10.0.0.2", first_port=50001, encryption=True)
CONTAINER = ContainerRecord("c0ffee", INFO, "w1")
SESSION = SessionRecord(
    KEY,
    SessionSpec("python", Limits(cpus=0.5), {"TOKEN": "é\n"}, 12.5, 60.0, "/tmp/x", "w1"),
    1_700_000_000.5,
    "an-id",
    CONTAINER,
    StateNotice(StateChange.RESTARTED, "a restart was asked for", 3),
)
SPEC = SandboxSpec("t", Limits(), {"A": "b"}, 1.0, 2.0, 3.0, "id", {"of": "é"}, "secret", "key")
SANDBOX = SandboxRecord(KEY, SPEC, "w1", 5.0, CONTAINER, "gone")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def reopened(path: Path) -> Ledger:
    return Ledger(path)


def test_records_are_unchanged_after_a_restart(path: Path) -> None:
    first = Ledger(path)
    first.keep(SESSION)
    first.keep(SANDBOX)
    # Not closed: a gateway that is killed closes nothing.
    second = reopened(path)
    assert (second.sessions(), second.sandboxes()) == ([SESSION], [SANDBOX])
    first.close()
    second.close()


def test_only_its_user_can_read_the_ledger(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    for file in path.parent.iterdir():  # including the files that SQLite makes beside it
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    ledger.close()


def test_a_later_record_replaces_an_earlier_one(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    later = SessionRecord(KEY, SessionSpec(), 1.0, "an-id", CONTAINER, StateNotice(incarnation=4))
    ledger.keep(later)
    assert ledger.sessions() == [later]
    ledger.close()


def test_an_end_is_remembered_until_a_new_session_has_the_same_name(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.why_ended(KEY) is None
    ledger.keep(SESSION)
    ledger.end(KEY, "it was idle")
    assert (ledger.sessions(), ledger.why_ended(KEY)) == ([], "it was idle")
    assert ledger.why_ended(SessionKey("other", KEY.name)) is None
    ledger.close()
    again = reopened(path)
    assert again.why_ended(KEY) == "it was idle"
    again.keep(SESSION)
    assert again.why_ended(KEY) is None
    again.close()


def test_the_last_end_of_a_place_is_remembered_until_it_is_reported(path: Path) -> None:
    ledger = Ledger(path)
    first, second, elsewhere = (SessionKey("acme", name) for name in ("a", "b", "c"))
    ledger.end(first, "it was idle", "/home/ada")
    ledger.end(second, "it was old", "/home/ada")
    ledger.end(elsewhere, "it was full")
    ledger.close()
    again = reopened(path)
    assert again.last_end_at("acme", "/home/ada") == (second, "it was old")
    again.forget_end(second)
    assert again.last_end_at("acme", "/home/ada") == (first, "it was idle")
    again.forget_end(first)
    again.forget_end(first)
    assert again.last_end_at("acme", "/home/ada") is None
    assert again.last_end_at("umbrella", "/home/ada") is None
    assert again.last_end_at("acme", "") is None, "sessions without a place have nothing in common"
    assert again.why_ended(elsewhere) == "it was full"
    again.close()


#: the table of ends in earlier versions: without places, and with places that no index has
WITHOUT_PLACES = (
    "CREATE TABLE ended (at INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, "
    "UNIQUE (tenant, name)) STRICT"
)
WITHOUT_INDEX = f"{WITHOUT_PLACES}; ALTER TABLE ended ADD COLUMN place TEXT NOT NULL DEFAULT ''"


@pytest.mark.parametrize("earlier", ["", WITHOUT_PLACES, WITHOUT_INDEX], ids=["new", "without places", "without index"])
def test_the_last_end_of_a_place_is_found_by_an_index(path: Path, connections: list[Database], earlier: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(earlier)
    ledger, asked = Ledger(path), list[str]()
    (connection,) = connections
    connection.set_trace_callback(asked.append)
    ledger.last_end_at("acme", "/home/ada")
    connection.set_trace_callback(None)
    (search,) = asked
    plan = [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {search}")]
    assert plan == ["SEARCH ended USING INDEX ended_at (tenant=? AND place=?)"]  # and no sorting
    ledger.close()


def test_a_ledger_of_an_earlier_version_is_continued(path: Path) -> None:
    with closing(sqlite3.connect(path)) as earlier, earlier:
        earlier.execute(WITHOUT_PLACES)
        earlier.execute("INSERT INTO ended VALUES (1, 'acme', 'a', 'it was idle')")
    ledger = Ledger(path)
    ledger.end(SessionKey("acme", "b"), "it was old", "/home/ada")
    assert ledger.why_ended(SessionKey("acme", "a")) == "it was idle"
    assert ledger.last_end_at("acme", "/home/ada") == (SessionKey("acme", "b"), "it was old")
    ledger.close()


def test_a_tenant_with_many_ends_pushes_out_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "REMEMBERED", 4)
    ledger = Ledger()
    others = [SessionKey("first", "s"), SessionKey("second", "s")]
    keys = [others[0], *(SessionKey("many", f"s{number}") for number in range(10)), others[1]]
    for key in keys:
        ledger.end(key, key.name)
    assert [key for key in keys if ledger.why_ended(key)] == [others[0], *keys[9:11], others[1]]
    ledger.end(SessionKey("third", "s"), "s")
    ledger.end(SessionKey("fourth", "s"), "s")  # all have one now: the oldest is forgotten
    assert [key for key in [*keys, SessionKey("fourth", "s")] if ledger.why_ended(key)] == [
        *(keys[10], others[1]),
        SessionKey("fourth", "s"),
    ]
    ledger.close()


def test_ends_that_could_not_be_written_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fails(database: Database) -> Iterator[None]:
        database.execute("BEGIN")
        yield
        database.execute("ROLLBACK")
        failure = sqlite3.OperationalError("disk I/O error")
        failure.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise failure

    monkeypatch.setattr(ended, "REMEMBERED", 2)
    ledger = Ledger()
    with monkeypatch.context() as patch:
        patch.setattr(Database, "transaction", fails)
        for number in range(5):
            ledger.end(SessionKey("acme", f"s{number}"), "x")
    for name in ("a", "b"):
        ledger.end(SessionKey("acme", name), name)
    assert [ledger.why_ended(SessionKey("acme", name)) for name in ("s0", "a", "b")] == [None, "a", "b"]
    ledger.close()


def test_only_the_last_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "REMEMBERED", 3)
    ledger = Ledger()
    keys = [SessionKey("acme", f"s{number}") for number in range(5)]
    for key in keys:
        ledger.end(key, key.name)
    ledger.end(keys[2], "again")  # this is the last end now
    assert [ledger.why_ended(key) for key in keys] == [None, None, "again", "s3", "s4"]
    ledger.close()


def test_idempotency_keys_are_kept_until_their_session_ends(path: Path) -> None:
    first = Ledger(path)
    first.keep(SESSION)
    for key in ("a", "b"):
        first.idempotency_keys(KEY).add(key, key.encode(), b"waits")
    first.idempotency_keys(SessionKey("acme", "other")).add("a", b"x", b"waits")
    first.idempotency_keys(KEY).forget("b")
    second = reopened(path)
    assert second.idempotency_keys(KEY).all() == {"a": Asked(b"a", b"waits")}
    second.end(KEY, "")
    assert second.idempotency_keys(KEY).all() == {}
    assert second.idempotency_keys(SessionKey("acme", "other")).all() == {"a": Asked(b"x", b"waits")}
    first.close()
    second.close()


def test_the_end_of_an_execution_is_kept_with_its_key_and_is_deleted_with_it(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    keys = ledger.idempotency_keys(KEY)
    for key in ("b", "a", "c"):
        keys.add(key, b"digest", b"waits")
        keys.end(key, key.encode())
    keys.forget("a")
    keys.add("a", b"again", b"waits")
    keys.sends("a")
    assert list(reopened(path).idempotency_keys(KEY).all().items()) == [
        ("b", Asked(b"digest", b"b")),
        ("c", Asked(b"digest", b"c")),
        ("a", Asked(b"again")),
    ]
    ledger.end(KEY, "")
    keys.add("b", b"digest", b"waits")
    assert keys.all() == {"b": Asked(b"digest", b"waits")}
    ledger.close()


def full(connection: Database) -> None:
    """Let the database grow no more, as on a full disk."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_refuses_new_sessions_and_allows_ends(path: Path, connections: list[Database]) -> None:
    ledger = Ledger(path)
    full(connections[0])

    def fill() -> None:
        for number in range(1000):
            ledger.keep(SessionRecord(SessionKey("acme", f"s{number}"), SessionSpec(), 1.0, "an-id", CONTAINER))

    with pytest.raises(LedgerUnavailable):
        fill()
    kept = ledger.sessions()
    assert 0 < len(kept) < 1000
    ledger.end(kept[0].key, "x")  # an existing session can still be ended
    assert kept[0] not in ledger.sessions()
    ledger.close()


def test_what_must_succeed_on_a_broken_disk_is_logged_and_raises_nothing(
    path: Path, connections: list[Database]
) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    keys = ledger.idempotency_keys(KEY)
    connections[0].execute("PRAGMA query_only = 1")
    with capture_logs() as logs:
        ledger.end(KEY, "x")
        ledger.end_sandbox(KEY)
        ledger.forget_end(KEY)
        keys.end("a", b"a")
        keys.forget("a")
    assert [entry["event"] for entry in logs] == ["the ledger cannot be written"] * 5
    assert ledger.sessions() == [SESSION]
    connections[0].execute("PRAGMA query_only = 0")
    ledger.end(KEY, "x")
    assert ledger.sessions() == []
    ledger.close()


def test_a_damaged_ledger_is_renamed_and_the_gateway_starts(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"garbage" * 1000)
    ledger = Ledger(path)
    assert ledger.sessions() == []
    ledger.keep(SESSION)
    assert [file.name for file in path.parent.glob("*.damaged-*")] != []
    ledger.close()


def test_a_record_of_another_version_is_left_out(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO kept VALUES ('SessionRecord', 'acme', 's2', x'7b7d')")
    assert ledger.sessions() == [SESSION]
    ledger.close()
