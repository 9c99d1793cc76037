"""What the audit's lines say, and the chain that they are in. Written by `audit.py`.

Each record carries the digest of itself and of the one before it, so that nobody changes or removes one of them
unseen; whoever keeps the last digest elsewhere also sees that the end was cut off. Where old records were removed, a
record of that, in the chain itself, says what it now begins from.
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

from sessions.models import ExecutionResult

#: what the first record's digest goes on from
FIRST = "0" * 64
#: how an execution is told to have ended of which the gateway knows no more, because it was ended itself
UNKNOWN = "unknown"
#: and one that never ran
UNSENT = "unsent"
#: and one that was not allowed to
REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """An execution is about to run."""

    tenant: str
    session: str
    language: str
    code_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """It has ended."""

    #: a status of `sessions.models`, `UNKNOWN`, `UNSENT` or `REFUSED`
    outcome: str
    duration_ms: float | None = None
    #: what went wrong, as SB code
    error: str | None = None
    #: what it put out, left out parts included
    output_bytes: int | None = None
    #: bytes that its kernel used at its end
    memory: int | None = None

    @classmethod
    def of(cls, result: ExecutionResult | None) -> End:
        """How an execution ended; None: it was never sent to its kernel."""
        if result is None:
            return cls(outcome=UNSENT)
        return cls(
            outcome=result.status.value,
            duration_ms=round(result.duration * 1000, 3),
            error=result.error.code if result.error else None,
            output_bytes=result.output_bytes,
            memory=result.memory,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """All records up to one were removed, because they were old. The chain begins from its digest."""

    through: int
    digest: str


What = Begin | End | Cut
KINDS: dict[str, type[What]] = {"begin": Begin, "end": End, "cut": Cut}
W = TypeVar("W", bound=What)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the audit."""

    seq: int
    #: seconds since 1970
    at: float
    execution: str
    what: What
    digest: str


def written(at: float, execution: str, what: What) -> tuple[str, bytes]:
    """A record as it is kept.

    Returns:
        its kind, and it.
    """
    event = next(event for event, kind in KINDS.items() if isinstance(what, kind))
    return event, orjson.dumps({"at": at, "event": event, "execution": execution, **asdict(what)})


def parsed(kind: type[W], record: bytes) -> tuple[float, W]:
    """When a record was written, in seconds since 1970, and what it says."""
    values = orjson.loads(record)
    return values["at"], kind(**{name: values[name] for name in values.keys() - {"at", "event", "execution"}})


def digest_of(last: str, record: bytes) -> str:
    """The digest of a record that follows one with the digest `last`."""
    return hashlib.sha256(last.encode() + record).hexdigest()


def read(path: Path) -> Iterator[Record]:
    """All records of an audit that a gateway may be writing, oldest first.

    Raises:
        OSError: there is none.
        ValueError: a record was changed, or is missing before the last; the message says which.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no audit at {path}")
    with closing(read_only(path)) as database:
        yield from chain(database)


def read_only(path: Path) -> sqlite3.Connection:
    """A connection of its own to records that a gateway may be writing."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def chain(database: sqlite3.Connection) -> Iterator[Record]:
    """All records, oldest first; see `read`."""
    row = database.execute("SELECT record FROM audit WHERE event = 'cut' ORDER BY seq DESC LIMIT 1").fetchone()
    # What it says is believed for now: the chain leads to it in the end.
    cut = Cut(through=0, digest=FIRST) if row is None else parsed(Cut, row[0])[1]
    last, expected = cut.digest, cut.through + 1
    for seq, execution, event, record, digest in database.execute(
        "SELECT seq, execution, event, record, digest FROM audit ORDER BY seq"
    ):
        if seq != expected or digest != digest_of(last, record):
            raise ValueError(f"record {expected} of the audit was changed or removed")
        yield Record(seq, *_told(event, execution, record), digest)
        last, expected = digest, seq + 1


def _told(event: str, execution: str, record: bytes) -> tuple[float, str, What]:
    at, what = parsed(KINDS[event], record)
    return at, execution, what
