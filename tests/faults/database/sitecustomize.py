"""Lets the gateway's n-th write to its databases fail. Python imports this module at its start, before any other.

The number n stands in a file, and is counted down with each write; after the failure the file is gone.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Any

#: names the file with the number
COUNTDOWN = Path(os.environ["FAIL_WRITE"])  # noqa: TID251 - set by the test
WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|BEGIN|COMMIT)\b", re.IGNORECASE)


_connect = sqlite3.connect


def counting(kind: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    """Return a kind of connections whose writes are counted."""

    class Connection(kind):  # type: ignore[misc, valid-type]
        def execute(self, sql: str, *parameters: Any) -> Any:
            """Run a statement, or fail in its place."""
            if WRITES.match(sql) and COUNTDOWN.exists():
                left = int(COUNTDOWN.read_text()) - 1
                COUNTDOWN.write_text(str(left))
                if left == 0:
                    COUNTDOWN.unlink()
                    failure = sqlite3.OperationalError("disk I/O error")
                    failure.sqlite_errorcode = sqlite3.SQLITE_IOERR  # as SQLite's own
                    raise failure
            return super().execute(sql, *parameters)

    return Connection


def connect(*arguments: Any, factory: type[sqlite3.Connection] = sqlite3.Connection, **options: Any) -> Any:
    """Connect to a database; the gateway has connections of its own kind."""
    return _connect(*arguments, factory=counting(factory), **options)


sqlite3.connect = connect
