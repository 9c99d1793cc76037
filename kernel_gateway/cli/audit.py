"""`kernel-gateway audit`: print the audit, and check it for changes."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from dataclasses import asdict

import orjson

from kernel_gateway.cli.client_command import add_examples
from kernel_gateway.cli.settings import add_location, client_from
from kernel_gateway.http.formats import seconds_of
from sessions.store.records import Begin, End, Record, read

#: fields of the record of a begin by which executions are chosen, and what their flags say
CHOOSE = {
    "tenant": "print only this tenant's executions; all records are checked",
    "session": "print only executions in sessions of this name",
    "key_id": "print only what the key with this id has run, as `keys list` shows it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_location(parser)
    for name, text in CHOOSE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=text)
    parser.add_argument(
        "--since", metavar="WHEN", help="print only what began then or later: 2026-01-31 or 2026-01-31T09:30:00Z"
    )
    parser.add_argument("--until", metavar="WHEN", help="print only what began before")
    add_examples(parser, "kernel-gateway audit --tenant team-a --since 2026-01-31T09:00Z --until 2026-01-31T10:00Z")


def main(arguments: argparse.Namespace) -> int:
    """Print the records and check them.

    Returns:
        0 when no record was changed; 1 when a record was changed or removed, or there is no audit; 2 when a time is
        not valid.
    """
    path = client_from(arguments).state_dir.expanduser() / "audit.db"
    choice = _Choice(arguments)
    digest = ""
    try:
        for record in read(path):
            digest = record.digest
            if choice.has(record):
                values = asdict(record.what)
                line = {"seq": record.seq, "at": record.at, "execution": record.execution, **values}
                print(orjson.dumps(line).decode())
    except BrokenPipeError:  # nobody reads the records any more; that is no failure of the audit
        raise
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    print(f"nothing was changed; the last digest is {digest or 'none'}", file=sys.stderr)
    return 0


class _Choice:
    """Says which records belong to the executions that the flags choose."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._fields = {name: value for name in CHOOSE if (value := getattr(arguments, name)) is not None}
        self._since, self._until = (
            None if text is None else seconds_of(name, text)
            for name, text in (("--since", arguments.since), ("--until", arguments.until))
        )
        self._everything = not self._fields and self._since is None and self._until is None
        #: chosen executions that have not ended
        self._open: set[str] = set()

    def has(self, record: Record) -> bool:
        """Return whether to print a record. The records of an execution come in their order."""
        if self._everything:
            return True
        if isinstance(record.what, Begin) and self._chooses(record.at, record.what):
            self._open.add(record.execution)
        found = record.execution in self._open
        if isinstance(record.what, End):
            self._open.discard(record.execution)
        return found

    def _chooses(self, at: float, begin: Begin) -> bool:
        in_time = (self._since is None or at >= self._since) and (self._until is None or at < self._until)
        return in_time and all(getattr(begin, name) == value for name, value in self._fields.items())
