"""Lets the gateway's n-th write to its databases fail. Python imports this module at its start, before any other.

The number n stands in a file, and is counted down with each write; after the failure the file is gone.
"""

from __future__ import annotations

import functools
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

#: names the file with the number
COUNTDOWN = Path(os.environ["FAIL_WRITE"])  # noqa: TID251 - set by the test
WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|BEGIN|COMMIT)\b", re.IGNORECASE)


class Connection(sqlite3.Connection):
    """A connection whose writes are counted."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Run a statement, or fail in its place."""
        if WRITES.match(sql) and COUNTDOWN.exists():
            left = int(COUNTDOWN.read_text()) - 1
            COUNTDOWN.write_text(str(left))
            if left == 0:
                COUNTDOWN.unlink()
                raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)  # type: ignore[assignment]
