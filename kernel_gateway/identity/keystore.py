"""Stores the digests of keys that are made and revoked while the gateway runs, in SQLite.

The command `kernel-gateway keys` writes the same database that the gateway reads. A change takes effect with the next
request.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sessions.model.values import valid_name
from sessions.store.database import open_database, saving

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, role TEXT NOT NULL, created REAL NOT NULL
) STRICT
"""


class Role(StrEnum):
    """The permissions of a key."""

    #: use sessions of its tenant
    USER = "user"
    #: also administer the gateway
    ADMIN = "admin"


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


class KeyStore:
    """All revocable keys of one installation."""

    def __init__(self, state_dir: Path) -> None:
        """Open the database.

        Args:
            state_dir: state directory of the gateway, which is made if it is absent.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        #: file of the database
        self.path = state_dir / "keys.db"
        self._database = open_database(self.path, _SCHEMA)

    def add(self, tenant: str, role: Role = Role.USER, form: KeyForm = KeyForm.OWN) -> tuple[Key, str]:
        """Make a key.

        Returns:
            the key, and its secret, which is not stored.

        Raises:
            InvalidRequest: when the tenant's name is not allowed.
            LedgerUnavailable: when the key cannot be saved.
        """
        secret = form.secret()
        key = Key(secrets.token_hex(4), valid_name("tenant", tenant), role, time.time())
        values = [key.id, digest_of(secret), key.tenant, key.role, key.created_at]
        with saving("the key"):
            self._database.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", values)
        return key, secret

    def find(self, secret: str) -> Key | None:
        """Return the key with this secret, or None. The search time may reveal a part of the digest, not the secret."""
        if not secret.startswith(tuple(KeyForm)):
            return None
        row = self._database.execute(
            "SELECT id, tenant, role, created FROM keys WHERE digest = ?", [digest_of(secret)]
        ).fetchone()
        return _key(row) if row else None

    def get(self, key_id: str) -> Key | None:
        """Return the key with this id, or None if it does not exist or was revoked."""
        row = self._database.execute("SELECT id, tenant, role, created FROM keys WHERE id = ?", [key_id]).fetchone()
        return _key(row) if row else None

    def all(self) -> list[Key]:
        """Return every key, oldest first."""
        rows = self._database.execute("SELECT id, tenant, role, created FROM keys ORDER BY created, id")
        return [_key(row) for row in rows]

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
        """Close the database."""
        self._database.close()


def digest_of(secret: str) -> str:
    """Return the digest of a secret for storage. Secrets are long and random, so they need no salt and no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: tuple[str, str, str, float]) -> Key:
    key_id, tenant, role, created = row
    return Key(key_id, tenant, Role(role), created)
