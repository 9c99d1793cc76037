"""`kernel-gateway audit`: print the audit, and check it for changes."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict

import orjson

from kernel_gateway.cli.client_command import add_examples
from kernel_gateway.cli.flags import add_location, client_from
from kernel_gateway.times import rfc3339, seconds_of
from sessions.store.audit_search import Search
from sessions.store.records import Begin, CallBegin, CallEnd, End, Record, read

#: what to compare with a field of a begin record: field and help
FIELDS = {
    "tenant": "of this tenant",
    "session": "in this session",
    "language": "in this language",
    "key_id": "by this key, as `keys list` shows it",
    "address": "from this IP address",
    "dialect": "through this API: native, jupyter, agentrun, ragflow or e2b",
    "request_id": "by this request, as in X-Request-Id and in the log",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_location(parser)
    chosen = parser.add_argument_group("records", "print only the records of executions … (all records are checked)")
    for name, text in FIELDS.items():
        chosen.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper(), help=text)
    chosen.add_argument("--outcome", help="that ended so: ok, error, timeout, interrupted, died, unsent, unknown, …")
    chosen.add_argument("--since", metavar="WHEN", help="that began then or later: 2026-01-31 or 2026-01-31T09:30:00Z")
    chosen.add_argument("--until", metavar="WHEN", help="that began before")
    add_examples(
        parser,
        "kernel-gateway audit --tenant team-a --since 2026-01-31 --until 2026-02-01",
        "kernel-gateway audit --session demo --outcome error",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the records and check them.

    Returns:
        0 when no record was changed; 1 when a record was changed or removed, or there is no audit; 2 when a time is not
        valid.
    """
    path = client_from(arguments).state_dir.expanduser() / "audit.db"
    choice = _Choice(_search(arguments))
    digest = ""
    try:
        for record in read(path):
            digest = record.digest
            for each in choice.of(record):
                line = {
                    "seq": each.seq,
                    "at": rfc3339(each.at, "microseconds"),
                    "execution": each.execution,
                    **asdict(each.what),
                }
                print(orjson.dumps(line).decode())
    except BrokenPipeError:  # nobody reads the records any more; that is no failure of the audit
        raise
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    print(f"nothing was changed; the last digest is {digest or 'none'}", file=sys.stderr)
    return 0


def _search(arguments: argparse.Namespace) -> Search:
    return Search(
        outcome=arguments.outcome,
        since=None if arguments.since is None else seconds_of("--since", arguments.since),
        until=None if arguments.until is None else seconds_of("--until", arguments.until),
        **{name: getattr(arguments, name) for name in FIELDS},
    )


class _Choice:
    """Chooses the records of the executions that a search asks for."""

    def __init__(self, search: Search) -> None:
        self._search = search
        #: begin records of chosen executions that have not ended yet
        self._begun: dict[str, Record] = {}
        #: ids of the calls of tools whose begin record was printed
        self._calls: set[str] = set()

    def of(self, record: Record) -> Iterator[Record]:
        """Yield the records to print now. The outcome of an execution is known only from its last record."""
        match record.what:
            case _ if self._search == Search():
                yield record
            case Begin() as begin if self._search.finds(record.at, begin):
                self._begun[record.execution] = record
                if self._search.outcome is None:
                    yield record
            case CallBegin() as call if call.caller in self._begun and self._search.outcome is None:
                self._calls.add(record.execution)
                yield record
            case CallEnd() if record.execution in self._calls:
                self._calls.remove(record.execution)
                yield record
            case End() as end if (begun := self._begun.pop(record.execution, None)) is not None:
                if self._search.outcome is None:
                    yield record
                elif self._search.outcome == end.outcome:
                    yield from (begun, record)
