"""What a gateway knows of those before it."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from sessions import ledger as module
from sessions.backends.base import new_connection_info
from sessions.errors import LedgerUnavailable
from sessions.ledger import Ledger, Place, SandboxRecord, SessionRecord
from sessions.models import Limits, SandboxSpec, SessionKey, SessionSpec, StateChange

KEY = SessionKey("acme", "s1")
INFO = new_connection_info("tcp", "10.0.0.2", first_port=50001, encryption=True)
PLACE = Place("c0ffee", INFO, "w1")
SESSION = SessionRecord(
    KEY,
    SessionSpec("python", Limits(cpus=0.5), {"TOKEN": "é\n"}, 12.5, 60.0, "/tmp/x", "w1"),
    1_700_000_000.5,
    3,
    PLACE,
    StateChange.RESTARTED,
    "a restart was asked for",
)
SANDBOX = SandboxRecord(KEY, SandboxSpec("t", Limits(), {"A": "b"}, 1.0, 2.0, 3.0, "id"), "w1", 5.0, PLACE, "gone")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def reopened(path: Path) -> Ledger:
    return Ledger(path)


def test_what_is_kept_is_there_after_a_restart_exactly_as_it_was(path: Path) -> None:
    first = Ledger(path)
    first.keep(SESSION)
    first.keep(SANDBOX)
    # Not closed: a gateway that is killed closes nothing.
    second = reopened(path)
    assert (second.sessions(), second.sandboxes()) == ([SESSION], [SANDBOX])
    first.close()
    second.close()


def test_only_its_user_can_read_the_keys_in_it(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    for file in path.parent.iterdir():  # those beside it that SQLite makes too
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    ledger.close()


def test_the_last_word_counts(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    later = SessionRecord(KEY, SessionSpec(), 1.0, 4, PLACE)
    ledger.keep(later)
    assert ledger.sessions() == [later]
    ledger.close()


def test_an_end_is_remembered_until_there_is_another_of_its_name(path: Path) -> None:
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


def test_only_the_last_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    ledger = Ledger()
    keys = [SessionKey("acme", f"s{number}") for number in range(5)]
    for key in keys:
        ledger.end(key, key.name)
    ledger.end(keys[2], "again")  # it is the last one now
    assert [ledger.why_ended(key) for key in keys] == [None, None, "again", "s3", "s4"]
    ledger.close()


def test_what_must_not_run_twice_is_known_until_its_session_ends(path: Path) -> None:
    first = Ledger(path)
    first.keep(SESSION)
    for key in ("a", "b"):
        first.asked(KEY).add(key, key.encode())
    first.asked(SessionKey("acme", "other")).add("a", b"x")
    first.asked(KEY).forget("b")
    second = reopened(path)
    assert second.asked(KEY).all() == {"a": b"a"}
    second.end(KEY, "")
    assert second.asked(KEY).all() == {}
    assert second.asked(SessionKey("acme", "other")).all() == {"a": b"x"}
    first.close()
    second.close()


def full(ledger: Ledger) -> None:
    """Let nothing more be written, as on a disk that is full."""
    pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")


def test_what_cannot_be_written_down_is_not_made(path: Path) -> None:
    ledger = Ledger(path)
    full(ledger)

    def fill() -> None:
        for number in range(1000):
            ledger.keep(SessionRecord(SessionKey("acme", f"s{number}"), SessionSpec(), 1.0, 1, PLACE))

    with pytest.raises(LedgerUnavailable):
        fill()
    kept = ledger.sessions()
    assert 0 < len(kept) < 1000
    ledger.end(kept[0].key, "x")  # what is there can be ended all the same
    assert kept[0] not in ledger.sessions()
    ledger.close()


def test_an_end_that_cannot_be_written_raises_nothing(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep(SESSION)
    ledger._database.execute("PRAGMA query_only = 1")
    ledger.end(KEY, "x")
    ledger.end_sandbox(KEY)
    assert ledger.sessions() == [SESSION]
    ledger._database.execute("PRAGMA query_only = 0")
    ledger.end(KEY, "x")
    assert ledger.sessions() == []
    ledger.close()


def test_one_that_is_damaged_is_put_aside_and_the_gateway_starts(path: Path) -> None:
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
