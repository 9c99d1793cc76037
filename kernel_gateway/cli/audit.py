"""`kernel-gateway audit`: print the audit, and check it for changes."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from dataclasses import asdict

import orjson

from kernel_gateway.cli.settings import add_location, client_from
from sessions.store.records import read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_location(parser)
    parser.add_argument("--tenant", help="print only this tenant's records; all are checked")


def main(arguments: argparse.Namespace) -> int:
    """Print the records and check them.

    Returns:
        0 when no record was changed; 1 when a record was changed or removed, or there is no audit.
    """
    path = client_from(arguments).state_dir.expanduser() / "audit.db"
    tenants: dict[str, str] = {}
    digest = ""
    try:
        for record in read(path):
            values = asdict(record.what)
            tenant = tenants.setdefault(record.execution, values.get("tenant", ""))
            digest = record.digest
            if arguments.tenant in {None, tenant}:
                line = {"seq": record.seq, "at": record.at, "execution": record.execution, **values}
                print(orjson.dumps(line).decode())
    except BrokenPipeError:  # nobody reads the records any more; that is no failure of the audit
        raise
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    print(f"nothing was changed; the last digest is {digest or 'none'}", file=sys.stderr)
    return 0
