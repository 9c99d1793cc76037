"""The audit: who ran which cell, when, and with which outcome. It contains no code and no outputs.

A record is written before and after each cell. If the gateway is killed, no record is lost. If the machine loses power,
the records of the last second may be lost (`sync.py`). `records.py` defines the records and their chain.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import orjson
import structlog

from sessions.model.errors import AuditUnavailable
from sessions.model.tasks import forever
from sessions.model.values import NO_ASKER, Asker, SessionKey
from sessions.store.audit_search import EVERYTHING, Account, Search, ended_since, latest
from sessions.store.database import open_database
from sessions.store.records import (
    FIRST,
    UNKNOWN,
    Begin,
    CallBegin,
    CallEnd,
    Content,
    Cut,
    End,
    Look,
    Record,
    chain,
    decode_record,
    digest_of,
    encode_record,
)
from sessions.store.reserve import room_in

log = structlog.get_logger()

#: end records that may wait until the database can be written again
WAITING_MAX = 10_000
#: records that one removal of old records reads at most
CUT_MAX = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY, execution TEXT NOT NULL, event TEXT NOT NULL, record BLOB NOT NULL, digest TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS audit_once ON audit (execution, event);
CREATE INDEX IF NOT EXISTS audit_tenant ON audit (json_extract(CAST(record AS TEXT), '$.tenant'), seq)
    WHERE event = 'begin';
CREATE INDEX IF NOT EXISTS audit_ended ON audit (json_extract(CAST(record AS TEXT), '$.at')) WHERE event = 'end';
CREATE INDEX IF NOT EXISTS audit_cut ON audit (seq) WHERE event = 'cut';
"""
_OPEN = """
SELECT execution, record FROM audit WHERE event = 'begin' AND execution NOT IN
    (SELECT execution FROM audit WHERE event = 'end') ORDER BY seq
"""
_NEWEST = """
SELECT tenant, count(*) FROM (
    SELECT json_extract(CAST(record AS TEXT), '$.tenant') AS tenant FROM audit WHERE event = 'begin'
    ORDER BY seq DESC LIMIT ?
) GROUP BY tenant
"""


class Audit:
    """The audit records of one gateway."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the database, and write an end record for each execution that an earlier gateway has left open.

        Args:
            path: path of the database. It is made if absent.
            clock: function that returns seconds since 1970.
        """
        self._path = path
        self._clock = clock
        self._database = open_database(path, _SCHEMA)
        last = self._database.execute("SELECT digest FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
        self._last: str = last[0] if last else FIRST
        self._waiting: deque[tuple[str, End | CallEnd]] = deque(maxlen=WAITING_MAX)
        self._failing = False
        #: sessions whose cell was running when an earlier gateway ended
        self.interrupted: set[SessionKey] = set()
        for execution, record in self._database.execute(_OPEN).fetchall():
            begin = decode_record(Begin, record)[1]
            self.interrupted.add(SessionKey(begin.tenant, begin.session))
            self.end(execution, End(outcome=UNKNOWN))

    # -- write ----------------------------------------------------------------------------------------------

    def begin(self, key: SessionKey, language: str, code: str, asker: Asker = NO_ASKER) -> str:
        """Write the record of a cell that is about to run.

        Args:
            key: tenant and name of the session.
            language: name of the language.
            code: code as the client wrote it. Only its digest is recorded.
            asker: who asked for the cell.

        Returns:
            id of the execution.

        Raises:
            AuditUnavailable: when the record cannot be written; the cell must not run.
        """
        digest = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
        begin = Begin(
            tenant=key.tenant, session=key.name, language=language, code_sha256=digest, **dataclasses.asdict(asker)
        )
        return self._begin(begin)

    def begin_call(self, begin: CallBegin) -> str:
        """Write the record of a call of an operator's tool that a cell is about to make, and return the call's id.

        Raises:
            AuditUnavailable: when the record cannot be written; the call must not be made.
        """
        return self._begin(begin)

    def look(self, tenant: str, session: str, asker: Asker) -> None:
        """Write the record of an admin's look at a tenant's session; without a name, at the list of its sessions.

        Raises:
            AuditUnavailable: when the record cannot be written; nothing must be shown.
        """
        self._begin(Look(tenant=tenant, session=session, **dataclasses.asdict(asker)))

    def _begin(self, begin: Begin | CallBegin | Look) -> str:
        execution = uuid.uuid4().hex
        try:
            self._write_waiting()
            self._append(execution, begin)
        except sqlite3.Error as error:
            self._failed(error)
            raise AuditUnavailable from error
        return execution

    def end(self, execution: str, end: End | CallEnd) -> None:
        """Write how an execution or a call ended. If that fails, the record stays in memory until it can be written."""
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
        if not self._failing:  # logged only once: a full disk has no room for log lines either
            log.error("the audit cannot be written; nothing is run until it can", error=str(error))
        self._failing = True

    def _append(self, execution: str, what: Content) -> None:
        event, record = encode_record(self._clock(), execution, what)
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
        """Remove the oldest records of ended executions, at most `CUT_MAX` records per call.

        Args:
            age: seconds after which a record is old.

        Returns:
            whether there may be more old records.

        Raises:
            AuditUnavailable: when the database cannot be written.
        """
        last, chained = self._oldest(self._clock() - age), self._last
        if last is None:
            return False
        try:
            with self._database.transaction():
                self._append(uuid.uuid4().hex, last)
                self._database.execute("DELETE FROM audit WHERE seq <= ?", [last.through])
        except sqlite3.Error as error:
            self._last = chained
            raise AuditUnavailable from error
        return True

    async def keep_removing_old(self, age: float, interval: float) -> NoReturn:
        """Remove old records at intervals. A call of `cut` is short, so other tasks can write records between two.

        Args:
            age: seconds after which a record is old.
            interval: seconds between two checks.
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
        """Return the cut after the newest record that can be removed now, or None."""
        found = None
        rows = self._database.execute("SELECT * FROM audit ORDER BY seq LIMIT ?", [CUT_MAX])
        for seq, execution, event, record, digest in rows.fetchall():
            if orjson.loads(record)["at"] >= before or (event == "begin" and not self._ended(execution, before)):
                break
            if event != "cut":  # a cut that removes only the cut before it would have no use
                found = Cut(through=seq, digest=digest)
        return found

    def _ended(self, execution: str, before: float) -> bool:
        row = self._database.execute(
            "SELECT record FROM audit WHERE event = 'end' AND execution = ?", [execution]
        ).fetchone()
        return row is not None and orjson.loads(row[0])["at"] < before

    # -- room -----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return the bytes for further records: the free bytes of the disk, and those that removed records have left.

        Raises:
            AuditUnavailable: when the disk does not answer, or the database cannot be read.
        """
        try:
            pages = self._database.execute("PRAGMA freelist_count").fetchone()[0]
            size = self._database.execute("PRAGMA page_size").fetchone()[0]
            return room_in(self._path.parent) + int(pages * size)
        except (OSError, sqlite3.Error) as error:
            raise AuditUnavailable from error

    def newest(self, most: int) -> dict[str, int]:
        """Return how many of the newest `most` executions belong to each tenant."""
        return dict(self._database.execute(_NEWEST, [most]).fetchall())

    # -- read -----------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        """Return all records, oldest first, as in `records.read`."""
        return chain(self._database)

    def latest(self, most: int, search: Search = EVERYTHING) -> list[Account]:
        """Return executions, newest first. Call this in a thread, because it may have to read all records.

        Args:
            most: maximum number of executions.
            search: filter for executions.
        """
        return latest(self._path, most, search)

    def ended_since(self, time: float) -> list[tuple[float, Begin, End]]:
        """Return the executions that ended at `time` (seconds since 1970) or later, in the order of their ends.

        Returns:
            time of the end, begin record and end record of each execution.
        """
        return ended_since(self._database, time)

    def close(self) -> None:
        """Write the waiting end records, if possible, and close the database."""
        try:
            self._write_waiting()
        except sqlite3.Error as error:
            self._failed(error)
        self._database.close()
