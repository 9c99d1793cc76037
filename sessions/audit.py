"""Who ran what, when, and how it ended: written before a cell runs and when it has ended. Never code, never outputs.

SQLite in WAL mode without a sync per record: nothing is lost when the gateway is killed, the last moments may be when
the machine loses power. What the records say and how they are chained stands in `records.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import orjson
import structlog

from sessions.errors import AuditUnavailable
from sessions.models import SessionKey
from sessions.records import FIRST, UNKNOWN, Begin, Cut, End, Record, What, chain, digest_of, parsed, read_only, written
from sessions.tasks import forever

log = structlog.get_logger()

#: ends that may wait until they can be written again
WAITING_MAX = 10_000
#: seconds to wait for whoever else holds the database
LOCKED_MAX = 0.2
#: records that are looked at in one go when old ones are removed
CUT_MAX = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY, execution TEXT NOT NULL, event TEXT NOT NULL, record BLOB NOT NULL, digest TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS audit_once ON audit (execution, event);
CREATE INDEX IF NOT EXISTS audit_tenant ON audit (json_extract(CAST(record AS TEXT), '$.tenant'), seq)
    WHERE event = 'begin';
CREATE INDEX IF NOT EXISTS audit_cut ON audit (seq) WHERE event = 'cut';
"""
_OPEN = """
SELECT execution, record FROM audit WHERE event = 'begin' AND execution NOT IN
    (SELECT execution FROM audit WHERE event = 'end') ORDER BY seq
"""
_ENDED = """
SELECT e.record, b.record FROM audit e JOIN audit b ON b.execution = e.execution AND b.event = 'begin'
    WHERE e.event = 'end' ORDER BY e.seq DESC
"""
_EXECUTIONS = """
SELECT b.seq, b.execution, b.record, e.record FROM audit b
    LEFT JOIN audit e ON e.execution = b.execution AND e.event = 'end' WHERE b.event = 'begin' AND b.seq < :before
"""
_MORE = {
    "tenant": " AND json_extract(CAST(b.record AS TEXT), '$.tenant') = :tenant",
    "session": " AND json_extract(CAST(b.record AS TEXT), '$.session') = :session",
    "outcome": " AND json_extract(CAST(e.record AS TEXT), '$.outcome') = :outcome",
    "since": " AND json_extract(CAST(b.record AS TEXT), '$.at') >= :since",
}
_NEWEST = " ORDER BY b.seq DESC LIMIT :most"


@dataclass(frozen=True, slots=True)
class Account:
    """One execution, as its records tell."""

    #: of its begin
    seq: int
    execution: str
    #: seconds since 1970
    began_at: float
    begin: Begin
    #: None as long as it runs
    ended_at: float | None
    end: End | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which executions are looked for; None: whichever."""

    tenant: str | None = None
    session: str | None = None
    #: as of `End`
    outcome: str | None = None
    #: those that began then or later, in seconds since 1970
    since: float | None = None
    #: those whose first record has a smaller number
    before: int | None = None


EVERYTHING = Search()


class Audit:
    """The records of one gateway."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open them, and tell of executions that an earlier gateway has left open that they have ended.

        Args:
            path: the database; made if absent.
            clock: seconds since 1970.
        """
        self._path = path
        self._clock = clock
        # Nobody else writes it. Should somebody, the loop must not stand still for it.
        self._database = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_MAX)
        path.chmod(0o600)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_SCHEMA)
        last = self._database.execute("SELECT digest FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
        self._last: str = last[0] if last else FIRST
        self._waiting: deque[tuple[str, End]] = deque(maxlen=WAITING_MAX)
        self._failing = False
        #: sessions that ran a cell when an earlier gateway ended
        self.interrupted: set[SessionKey] = set()
        for execution, record in self._database.execute(_OPEN).fetchall():
            begin = parsed(Begin, record)[1]
            self.interrupted.add(SessionKey(begin.tenant, begin.session))
            self.end(execution, End(outcome=UNKNOWN))

    # -- write ----------------------------------------------------------------------------------------------

    def begin(self, key: SessionKey, language: str, code: str) -> str:
        """Write down that a cell is about to run.

        Returns:
            the execution's id.

        Raises:
            AuditUnavailable: it cannot be written; the cell must not run.
        """
        execution = uuid.uuid4().hex
        digest = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
        begin = Begin(tenant=key.tenant, session=key.name, language=language, code_sha256=digest)
        try:
            self._write_waiting()
            self._append(execution, begin)
        except sqlite3.Error as error:
            self._failed(error)
            raise AuditUnavailable from error
        return execution

    def end(self, execution: str, end: End) -> None:
        """Write down how it ended; when that cannot be done, it is as soon as it can."""
        self._waiting.append((execution, end))
        try:
            self._write_waiting()
        except sqlite3.Error as error:
            self._failed(error)

    def _write_waiting(self) -> None:
        while self._waiting:
            self._append(*self._waiting[0])
            self._waiting.popleft()

    def _failed(self, error: sqlite3.Error) -> None:
        if not self._failing:  # once: whoever has no disk left has none for the log
            log.error("the audit cannot be written; nothing is run until it can", error=str(error))
        self._failing = True

    def _append(self, execution: str, what: What) -> None:
        event, record = written(self._clock(), execution, what)
        digest = digest_of(self._last, record)
        self._database.execute(
            "INSERT INTO audit (execution, event, record, digest) VALUES (?, ?, ?, ?)",
            [execution, event, record, digest],
        )
        self._last = digest
        if self._failing:
            log.info("the audit is written again")
        self._failing = False

    # -- remove ---------------------------------------------------------------------------------------------

    def cut(self, age: float) -> bool:
        """Remove the oldest records, as far as they are of executions that have ended; some at a time.

        Args:
            age: seconds since then that make them old.

        Returns:
            whether there may be more.

        Raises:
            AuditUnavailable: it cannot be written.
        """
        last, chained = self._oldest(self._clock() - age), self._last
        if last is None:
            return False
        try:
            with self._transaction():
                self._append(uuid.uuid4().hex, last)
                self._database.execute("DELETE FROM audit WHERE seq <= ?", [last.through])
        except sqlite3.Error as error:
            self._last = chained
            raise AuditUnavailable from error
        return True

    async def keep_short(self, age: float, interval: float) -> NoReturn:
        """Remove what is old, from time to time and a little at a time: others want to write too.

        Args:
            age: as of `cut`.
            interval: seconds between two looks.
        """

        async def cut_some() -> None:
            try:
                more = self.cut(age)
            except AuditUnavailable as error:
                log.warning("old records of the audit cannot be removed", error=str(error.__cause__))
                more = False
            await asyncio.sleep(0 if more else interval)

        await forever(cut_some, pause=interval)

    def _oldest(self, before: float) -> Cut | None:
        """The last record of those that can be removed now."""
        found = None
        rows = self._database.execute("SELECT * FROM audit ORDER BY seq LIMIT ?", [CUT_MAX])
        for seq, execution, event, record, digest in rows.fetchall():
            if orjson.loads(record)["at"] >= before or (event == "begin" and not self._ended(execution, before)):
                break
            if event != "cut":  # or one would only take the place of another
                found = Cut(through=seq, digest=digest)
        return found

    def _ended(self, execution: str, before: float) -> bool:
        row = self._database.execute(
            "SELECT record FROM audit WHERE event = 'end' AND execution = ?", [execution]
        ).fetchone()
        return row is not None and orjson.loads(row[0])["at"] < before

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    # -- read -----------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        """All records, oldest first; see `records.read`."""
        return chain(self._database)

    def latest(self, most: int, search: Search = EVERYTHING) -> list[Account]:
        """Executions, the newest first. Meant for a thread: it may have to read all records there are.

        Args:
            most: how many at most.
            search: which.
        """
        asked = {name: value for name, value in asdict(search).items() if value is not None}
        query = _EXECUTIONS + "".join(clause for name, clause in _MORE.items() if name in asked) + _NEWEST
        with closing(read_only(self._path)) as database:
            rows = database.execute(query, {"before": 2**62, "most": most} | asked).fetchall()
        return [_account(*row) for row in rows]

    def ended_since(self, time: float) -> list[tuple[float, Begin, End]]:
        """Executions that have ended since a time, in seconds since 1970: when, and what. The first comes first."""
        found = []
        for ended, began in self._database.execute(_ENDED):
            at, end = parsed(End, ended)
            if at < time:
                break
            found.append((at, parsed(Begin, began)[1], end))
        return found[::-1]

    def close(self) -> None:
        """Write what waits, if that is possible now, and free the database."""
        try:
            self._write_waiting()
        except sqlite3.Error as error:
            self._failed(error)
        self._database.close()


def _account(seq: int, execution: str, began: bytes, ended: bytes | None) -> Account:
    began_at, begin = parsed(Begin, began)
    ended_at, end = (None, None) if ended is None else parsed(End, ended)
    return Account(seq, execution, began_at, begin, ended_at, end)
