"""The records of the audit and their chain. `audit.py` writes them.

Each record has a digest, which is made from the record and from the digest before it. So a changed or removed record is
detected. An operator who keeps the last digest elsewhere also detects that the newest records were removed. When old
records are removed, a `Cut` record in the chain itself says where the chain now begins.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import orjson

from sessions.model.values import Asker, ExecutionEnd
from sessions.store.database import read_only

#: digest that precedes the first record
FIRST = "0" * 64
#: outcome of an execution that ran when the gateway itself was ended
UNKNOWN = "unknown"
#: outcome of an execution that never ran
UNSENT = "unsent"
#: outcome of an execution that was not allowed to run
REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Asker):
    """The record of an execution that is about to run, with who asked for it. Earlier versions did not record that."""

    tenant: str
    session: str
    language: str
    code_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The record of an execution that has ended."""

    #: a status of `sessions.model.values`, `UNKNOWN`, `UNSENT` or `REFUSED`
    outcome: str
    duration_ms: float | None = None
    #: code of the error, such as `SB005`
    error: str | None = None
    #: bytes of output, including parts that were left out
    output_bytes: int | None = None
    #: bytes of memory that the kernel used at the end of the execution
    memory: int | None = None

    @classmethod
    def of(cls, end: ExecutionEnd | None) -> End:
        """Return the record of an execution's end. `end` is None when it was never sent to its kernel."""
        if end is None:
            return cls(outcome=UNSENT)
        return cls(
            outcome=end.status.value,
            duration_ms=round(end.duration * 1000, 3),
            error=end.error.code if end.error else None,
            output_bytes=end.output_bytes,
            memory=end.memory,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegin:
    """The record of a call of an operator's tool that a cell is about to make. It has an id of its own."""

    tenant: str
    session: str
    #: the execution that calls
    caller: str
    server: str
    tool: str
    argument_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The record of such a call that has ended."""

    #: `ok`, `error`, or `ended`: the cell has ended before the answer
    outcome: str
    duration_ms: float
    answer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Asker):
    """The record of an admin's look at a tenant's session, with who looks. It has an id of its own."""

    tenant: str
    #: name of the session; empty: the list of the tenant's sessions
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The record of a removal of old records."""

    #: number of the last record that was removed
    through: int
    #: digest of that record; the chain now begins with it
    digest: str


Content = Begin | End | CallBegin | CallEnd | Look | Cut
KINDS: dict[str, type[Content]] = {
    "begin": Begin,
    "end": End,
    "call": CallBegin,
    "answer": CallEnd,
    "look": Look,
    "cut": Cut,
}
W = TypeVar("W", bound=Content)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the audit."""

    seq: int
    #: seconds since 1970
    at: float
    execution: str
    what: Content
    digest: str


def encode_record(at: float, execution: str, what: Content) -> tuple[str, bytes]:
    """Encode a record for storage.

    Returns:
        event of the record, a key of `KINDS`, and the record's bytes.
    """
    event = next(event for event, kind in KINDS.items() if isinstance(what, kind))
    return event, orjson.dumps({"at": at, "event": event, "execution": execution, **asdict(what)})


def decode_record(kind: type[W], record: bytes) -> tuple[float, W]:
    """Return the time at which a record was written, in seconds since 1970, and its content."""
    values = orjson.loads(record)
    return values["at"], kind(**{name: values[name] for name in values.keys() - {"at", "event", "execution"}})


def digest_of(last: str, record: bytes) -> str:
    """Return the digest of a record that follows one with the digest `last`."""
    return hashlib.sha256(last.encode() + record).hexdigest()


def read(path: Path) -> Iterator[Record]:
    """Yield all records of an audit, oldest first, and check their chain. A gateway may write the audit meanwhile.

    Raises:
        OSError: when there is no audit.
        ValueError: when a record was changed, or a record before the last one is missing. The message names it.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no audit at {path}")
    with closing(read_only(path)) as database:
        yield from chain(database)


def chain(database: sqlite3.Connection) -> Iterator[Record]:
    """Yield all records, oldest first, as in `read`."""
    last, expected = _beginning(database)
    for seq, execution, event, record, digest in database.execute(
        "SELECT seq, execution, event, record, digest FROM audit ORDER BY seq"
    ):
        if seq != expected or digest != digest_of(last, record) or not _names(record, event, execution):
            raise ValueError(f"record {expected} of the audit was changed or removed")
        at, what = decode_record(KINDS[event], record)
        yield Record(seq, at, execution, what, digest)
        last, expected = digest, seq + 1


def _beginning(database: sqlite3.Connection) -> tuple[str, int]:
    """Return the digest before the first record, and the number of the first record, from the last `Cut`.

    The cut is not checked here. It is a record of the chain, so the caller checks it later.
    """
    row = database.execute("SELECT record FROM audit WHERE event = 'cut' ORDER BY seq DESC LIMIT 1").fetchone()
    if row is not None and orjson.loads(row[0]).get("event", "cut") == "cut":
        cut = decode_record(Cut, row[0])[1]
        return cut.digest, cut.through + 1
    return FIRST, 1


def _names(record: bytes, event: str, execution: str) -> bool:
    """Return whether the columns agree with the record. Queries use the columns, but only the record has a digest."""
    values = orjson.loads(record)
    return (values["event"], values["execution"]) == (event, execution)
