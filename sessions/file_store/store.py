"""Stores files of tenants for some time: the content in a directory, the records beside it in SQLite.

The names on disk are random, and nothing of a client or a kernel is part of a path.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import structlog

from sessions.model.errors import FileNotFound, NoSpace, QuotaExceeded
from sessions.model.tasks import forever
from sessions.store.database import open_or_replace, saving
from sessions.tenants.budget import Budget

log = structlog.get_logger()

#: characters of an id; clients of LibreChat's API expect so many
ID_LENGTH = 21
#: bytes that a file counts at least, so that empty files are not free
LEAST = 4096
#: bytes that are read at a time
PIECE = 64 * 1024
#: seconds between two deletions of files whose time is over
EXPIRY_INTERVAL = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, owner TEXT NOT NULL, batch TEXT NOT NULL, name TEXT NOT NULL,
    size INTEGER NOT NULL, created REAL NOT NULL, read_only INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS files_of_batch ON files (tenant, owner, batch)
"""
_SELECT = "SELECT id, tenant, owner, batch, name, size, created, read_only FROM files"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is stored, and who may use it."""

    tenant: str
    #: who of the tenant may use it, in the form of its dialect
    owner: str
    #: id of the batch; files of several owners may have the same
    batch: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The record of one file."""

    id: str
    place: Place
    #: path that the client knows it by
    name: str
    size: int
    #: seconds since 1970
    created_at: float
    #: whether runs that change it leave the stored file as it is
    read_only: bool


def new_id() -> str:
    """Return an id that nobody can guess."""
    return secrets.token_urlsafe(ID_LENGTH)[:ID_LENGTH]


class FileStore:
    """The files of all tenants."""

    def __init__(self, state_dir: Path, budget: Budget, keep_for: float, clock: Callable[[], float]) -> None:
        """Open the store, and delete what a gateway that has crashed left half written.

        Args:
            state_dir: directory for the records and the directory of the contents.
            budget: bytes that tenants may store.
            keep_for: seconds for which a file is kept.
            clock: returns the seconds since 1970.
        """
        self._folder = state_dir / "files"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._database = open_or_replace(state_dir / "files.db", _SCHEMA)
        self._budget = budget
        self._keep_for = keep_for
        self._clock = clock
        self._adopt()

    def _adopt(self) -> None:
        present = {path.name for path in self._folder.iterdir()}
        for file in self._all(""):
            if file.id in present:
                present.discard(file.id)
                self._budget.hold(file.id, file.place.tenant, max(LEAST, file.size))
            else:
                self._database.execute("DELETE FROM files WHERE id = ?", [file.id])
        for name in present:
            (self._folder / name).unlink()

    def by_tenant(self) -> dict[str, int]:
        """Return the bytes that each tenant stores."""
        return self._budget.by_tenant()

    # -- records --------------------------------------------------------------------------------------------

    def find(self, place: Place, file_id: str) -> StoredFile:
        """Return one file.

        Raises:
            FileNotFound: when there is none with this id in this place. A file of others gives the same error.
        """
        found = self._all("WHERE tenant = ? AND owner = ? AND batch = ? AND id = ?", *_values(place), file_id)
        if not found or found[0].created_at + self._keep_for <= self._clock():
            raise FileNotFound("there is no such stored file, or no more")
        return found[0]

    def of(self, place: Place) -> list[StoredFile]:
        """Return the files of a place, oldest first."""
        files = self._all("WHERE tenant = ? AND owner = ? AND batch = ? ORDER BY created, id", *_values(place))
        return [file for file in files if file.created_at + self._keep_for > self._clock()]

    def _all(self, condition: str, *values: str | float) -> list[StoredFile]:
        rows = self._database.execute(f"{_SELECT} {condition}", values)
        return [
            StoredFile(file_id, Place(tenant, owner, batch), name, size, created, bool(read_only))
            for file_id, tenant, owner, batch, name, size, created, read_only in rows
        ]

    # -- content --------------------------------------------------------------------------------------------

    async def write(
        self, place: Place, name: str, content: AsyncIterable[bytes], *, read_only: bool = False
    ) -> StoredFile:
        """Store a file completely, or nothing of it.

        Raises:
            QuotaExceeded: when the tenant has its share of the disk, or all tenants together have all of it.
            NoSpace: when the disk itself is full.
            LedgerUnavailable: when the record cannot be saved.
        """
        file_id, size, tenant = new_id(), 0, place.tenant
        path = self._folder / file_id
        self._check_room(tenant, LEAST)
        self._budget.hold(file_id, tenant, LEAST)
        try:
            try:
                with await asyncio.to_thread(path.open, "xb") as target:
                    async for piece in content:
                        size += len(piece)
                        self._grow(file_id, tenant, size)
                        await asyncio.to_thread(target.write, piece)
            except OSError as error:
                raise NoSpace("the gateway's disk cannot store the file") from error
            file = StoredFile(file_id, place, name, size, self._clock(), read_only)
            values = [file_id, *_values(place), name, size, file.created_at, int(read_only)]
            with saving("the file"):
                self._database.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        except BaseException:
            path.unlink(missing_ok=True)
            self._budget.release(file_id)
            raise
        return file

    def _grow(self, file_id: str, tenant: str, size: int) -> None:
        more = size - self._budget.size(file_id)
        if more > 0:
            self._check_room(tenant, more)
            self._budget.grow(file_id, size)

    def _check_room(self, tenant: str, more: int) -> None:
        if not self._budget.allows(tenant, more):
            raise QuotaExceeded(
                "there is no room for further stored files of this tenant: delete some, or wait until they expire",
                limit="stored_disk",
                max=min(self._budget.share_of(tenant), self._budget.most),
            )

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces.

        Raises:
            FileNotFound: when it was deleted meanwhile.
        """
        try:
            source = await asyncio.to_thread((self._folder / file.id).open, "rb")
        except FileNotFoundError:
            raise FileNotFound("there is no such stored file, or no more") from None
        with source:
            while piece := await asyncio.to_thread(source.read, PIECE):
                yield piece

    # -- end ------------------------------------------------------------------------------------------------

    def delete(self, file: StoredFile) -> None:
        """Delete a file, even if the disk is full. Idempotent.

        Raises:
            LedgerUnavailable: when the deletion cannot be saved.
        """
        with saving("the deletion"):
            gone = self._database.run_deletion(
                lambda: self._database.execute("DELETE FROM files WHERE id = ?", [file.id])
            )
            (self._folder / file.id).unlink(missing_ok=True)
        if gone.rowcount:
            self._budget.release(file.id)

    def delete_all(self, tenant: str) -> int:
        """Delete all files of a tenant, and return their number.

        Raises:
            LedgerUnavailable: when a deletion cannot be saved.
        """
        files = self._all("WHERE tenant = ?", tenant)
        for file in files:
            self.delete(file)
        return len(files)

    def expire(self) -> None:
        """Delete the files whose time is over."""
        for file in self._all("WHERE created <= ?", self._clock() - self._keep_for):
            self.delete(file)

    async def keep_expiring(self) -> NoReturn:
        """Delete files whose time is over, at intervals, until cancelled."""

        async def step() -> None:
            await asyncio.sleep(EXPIRY_INTERVAL)
            self.expire()

        await forever(step)

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _values(place: Place) -> tuple[str, str, str]:
    return place.tenant, place.owner, place.batch
