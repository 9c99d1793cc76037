"""What the tests of several stores use."""

from __future__ import annotations

import pytest

from sessions.store import database
from sessions.store.database import Database


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    """The connections that are opened from now on: some faults, such as a full disk, can be had only on them."""
    opened: list[Database] = []
    connect = database.connect

    def noting(*arguments: object) -> Database:
        opened.append(connect(*arguments))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(database, "connect", noting)
    return opened
