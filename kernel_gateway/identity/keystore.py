"""Stores the digests of keys that are made and revoked while the gateway runs, in SQLite.

The command `kernel-gateway keys` writes the same database that the gateway reads. A change takes effect with the next
request. The times of last uses are kept in memory and written from time to time.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import structlog

from sessions.model.errors import InvalidRequest
from sessions.model.tasks import forever
from sessions.model.values import valid_name
from sessions.store.database import open_database, saving

log = structlog.get_logger()

#: maximum characters of a key's name
NAME_MAX = 64
#: seconds between two writes of the last uses. A write for each request would make every request slower.
USES_INTERVAL = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, role TEXT NOT NULL, created REAL NOT NULL,
    name TEXT NOT NULL DEFAULT '', expires REAL, used REAL
) STRICT
"""
_ADDED = {"keys": {"name": "TEXT NOT NULL DEFAULT ''", "expires": "REAL", "used": "REAL"}}
_SELECT = "SELECT id, tenant, role, created, name, expires, used FROM keys"


class Role(StrEnum):
    """The permissions of a key."""

    #: use sessions of its tenant
    USER = "user"
    #: also administer the gateway
    ADMIN = "admin"
    #: also name the user that a request is for: the key of a front end that serves many users
    FRONTEND = "frontend"


class KeyForm(StrEnum):
    """The prefix of a key, which lets scanners recognise a leaked key."""

    OWN = "kg-"
    #: some clients of E2B accept only this prefix, followed by hexadecimal digits
    E2B = "e2b_"

    def secret(self) -> str:
        """Return a new secret of this form."""
        return self + (secrets.token_hex(20) if self is KeyForm.E2B else secrets.token_urlsafe(32))


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without its secret."""

    id: str
    tenant: str
    role: Role
    #: seconds since 1970
    created_at: float
    #: what the key is for, as its maker wrote it
    name: str = ""
    #: time from which the key is refused, in seconds since 1970. None means never.
    expires_at: float | None = None
    #: time of the last use in seconds since 1970. None means that it was never used, or not since uses are recorded.
    used_at: float | None = None
    #: whether it was expired when it was read
    expired: bool = False


class KeyStore:
    """All revocable keys of one installation."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the database. A database of an earlier version gets the columns that it lacks.

        Args:
            state_dir: state directory of the gateway, which is made if it is absent.
            clock: returns seconds since 1970.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        #: file of the database
        self.path = state_dir / "keys.db"
        self._clock = clock
        self._database = open_database(self.path, _SCHEMA, _ADDED)
        #: times of last uses that are not written yet, by the id of the key
        self._uses: dict[str, float] = {}

    def add(
        self,
        tenant: str,
        role: Role = Role.USER,
        form: KeyForm = KeyForm.OWN,
        *,
        name: str = "",
        expires_at: float | None = None,
    ) -> tuple[Key, str]:
        """Make a key.

        Args:
            tenant: name of the tenant.
            role: permissions of the key.
            form: prefix of the secret.
            name: what the key is for.
            expires_at: time from which the key is refused, in seconds since 1970. None means never.

        Returns:
            the key, and its secret, which is not stored.

        Raises:
            InvalidRequest: when the tenant's name or the key's name is not allowed, or the key would be expired.
            LedgerUnavailable: when the key cannot be saved.
        """
        if len(name) > NAME_MAX or not name.isprintable():
            raise InvalidRequest(f"name must be at most {NAME_MAX} printable characters", field="name")
        secret, now = form.secret(), self._clock()
        if expires_at is not None and expires_at <= now:
            raise InvalidRequest("the time at which a key expires must be in the future", field="expires_at")
        key = Key(secrets.token_hex(4), valid_name("tenant", tenant), role, now, name, expires_at)
        values = [key.id, digest_of(secret), key.tenant, key.role, key.created_at, key.name, key.expires_at]
        with saving("the key"):
            self._database.execute(
                "INSERT INTO keys (id, digest, tenant, role, created, name, expires) VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        return key, secret

    def find(self, secret: str) -> Key | None:
        """Return the key with this secret, also an expired key, or None.

        The search time may reveal a part of the digest, not the secret.
        """
        if not secret.startswith(tuple(KeyForm)):
            return None
        row = self._database.execute(f"{_SELECT} WHERE digest = ?", [digest_of(secret)]).fetchone()
        return self._key(row) if row else None

    def get(self, key_id: str) -> Key | None:
        """Return the key with this id, also an expired key, or None if it does not exist or was revoked."""
        row = self._database.execute(f"{_SELECT} WHERE id = ?", [key_id]).fetchone()
        return self._key(row) if row else None

    def all(self) -> list[Key]:
        """Return every key, also expired keys, oldest first."""
        return [self._key(row) for row in self._database.execute(f"{_SELECT} ORDER BY created, id")]

    def _key(self, row: tuple[str, str, str, float, str, float | None, float | None]) -> Key:
        key_id, tenant, role, created, name, expires, used = row
        expired = expires is not None and expires <= self._clock()
        return Key(key_id, tenant, Role(role), created, name, expires, self._uses.get(key_id, used), expired)

    # -- uses -----------------------------------------------------------------------------------------------

    def note_use(self, key_id: str) -> None:
        """Remember that a key is used now. `save_uses` writes it."""
        self._uses[key_id] = self._clock()

    def save_uses(self) -> None:
        """Write the times of last uses. If that fails, they are kept in memory, and the next call tries again."""
        if not self._uses:
            return
        try:
            with self._database.transaction():
                self._database.executemany(
                    "UPDATE keys SET used = ? WHERE id = ?", [(at, key_id) for key_id, at in self._uses.items()]
                )
        except sqlite3.Error as error:
            log.warning("the last uses of keys cannot be written", error=str(error))
        else:
            self._uses.clear()

    async def keep_saving_uses(self) -> NoReturn:
        """Write the times of last uses at intervals, until cancelled."""

        async def save() -> None:
            await asyncio.sleep(USES_INTERVAL)
            self.save_uses()

        await forever(save)

    # -- end ------------------------------------------------------------------------------------------------

    def revoke(self, key_id: str) -> bool:
        """Revoke a key, even if the disk is full.

        Returns:
            True if there was a key with this id.

        Raises:
            LedgerUnavailable: when the revocation cannot be saved.
        """
        with saving("the revocation"):
            deleted = self._database.run_deletion(
                lambda: self._database.execute("DELETE FROM keys WHERE id = ?", [key_id])
            )
        return deleted.rowcount > 0

    def close(self) -> None:
        """Write the times of last uses, and close the database."""
        self.save_uses()
        self._database.close()


def digest_of(secret: str) -> str:
    """Return the digest of a secret for storage. Secrets are long and random, so they need no salt and no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
