"""Searches the audit, through a connection that can only read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from sessions.store.database import read_only
from sessions.store.records import Begin, End, Look, decode_record

_ENDED = """
SELECT e.record, b.record FROM audit e JOIN audit b ON b.execution = e.execution AND b.event = 'begin'
    WHERE e.event = 'end' ORDER BY e.seq DESC
"""
_EXECUTIONS = """
SELECT b.seq, b.execution, b.record, e.record FROM audit b
    LEFT JOIN audit e ON e.execution = b.execution AND e.event = 'end' WHERE b.event = 'begin' AND b.seq < :before
"""
_OF_BEGIN = ("tenant", "session", "language", "key_id", "address", "dialect", "request_id")
_MORE = {name: f" AND json_extract(CAST(b.record AS TEXT), '$.{name}') = :{name}" for name in _OF_BEGIN} | {
    "outcome": " AND json_extract(CAST(e.record AS TEXT), '$.outcome') = :outcome",
    "since": " AND json_extract(CAST(b.record AS TEXT), '$.at') >= :since",
    "until": " AND json_extract(CAST(b.record AS TEXT), '$.at') < :until",
}
_NEWEST = " ORDER BY b.seq DESC LIMIT :most"


@dataclass(frozen=True, slots=True)
class Account:
    """One execution, as its records describe it."""

    #: number of its begin record
    seq: int
    execution: str
    #: seconds since 1970
    began_at: float
    begin: Begin
    #: seconds since 1970, never before `began_at`. None while the execution runs.
    ended_at: float | None
    end: End | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A filter for executions. None means any value."""

    tenant: str | None = None
    session: str | None = None
    language: str | None = None
    #: who asked; see `Asker`
    key_id: str | None = None
    address: str | None = None
    dialect: str | None = None
    request_id: str | None = None
    #: `outcome` of `End`
    outcome: str | None = None
    #: executions that began at this time or later, in seconds since 1970
    since: float | None = None
    #: executions that began before this time, in seconds since 1970
    until: float | None = None
    #: executions whose begin record has a smaller number
    before: int | None = None

    def finds(self, at: float, begin: Begin | Look) -> bool:
        """Return whether an execution that began so, or a look, is asked for, whatever its number and its outcome."""
        wanted = ((name, getattr(self, name)) for name in _OF_BEGIN)
        return (
            all(value is None or getattr(begin, name, None) == value for name, value in wanted)
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )


EVERYTHING = Search()


def latest(path: Path, most: int, search: Search) -> list[Account]:
    """Return executions, newest first, as in `Audit.latest`."""
    asked = {name: value for name, value in asdict(search).items() if value is not None}
    query = _EXECUTIONS + "".join(clause for name, clause in _MORE.items() if name in asked) + _NEWEST
    with closing(read_only(path)) as database:
        rows = database.execute(query, {"before": 2**62, "most": most} | asked).fetchall()
    return [_account(*row) for row in rows]


def _account(seq: int, execution: str, began: bytes, ended: bytes | None) -> Account:
    began_at, begin = decode_record(Begin, began)
    ended_at, end = (None, None) if ended is None else decode_record(End, ended)
    if ended_at is not None:
        ended_at = max(began_at, ended_at)  # the machine's clock may have been set back
    return Account(seq, execution, began_at, begin, ended_at, end)


def ended_since(database: sqlite3.Connection, time: float) -> list[tuple[float, Begin, End]]:
    """Return the executions that ended at a time or later, as in `Audit.ended_since`."""
    found = []
    for ended, began in database.execute(_ENDED):
        at, end = decode_record(End, ended)
        if at < time:
            break
        found.append((at, decode_record(Begin, began)[1], end))
    return found[::-1]
