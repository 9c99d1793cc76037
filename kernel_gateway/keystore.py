"""Keys that are made and revoked while the gateway runs: their digests, in SQLite.

The command `kernel-gateway keys` writes the file that the gateway reads; a change takes effect with the next request.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sessions.models import valid_name

#: prefix of every key, so that a leaked key is recognised as one
PREFIX = "kg-"

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
            state_dir: directory of the gateway; made if absent.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = state_dir / "keys.db"
        self._database = sqlite3.connect(path, isolation_level=None, timeout=5)
        path.chmod(0o600)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(_SCHEMA)

    def add(self, tenant: str, role: Role = Role.USER) -> tuple[Key, str]:
        """Make a key.

        Returns:
            the key, and its secret, which is stored nowhere.

        Raises:
            InvalidRequest: when the tenant's name is not allowed.
        """
        secret = PREFIX + secrets.token_urlsafe(32)
        key = Key(secrets.token_hex(4), valid_name("tenant", tenant), role, time.time())
        self._database.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?)", [key.id, digest_of(secret), key.tenant, key.role, key.created_at]
        )
        return key, secret

    def find(self, secret: str) -> Key | None:
        """Return the key with this secret, or None. The response time reveals at most something of the digest."""
        if not secret.startswith(PREFIX):
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
        """Revoke a key.

        Returns:
            True if there was a key with this id.
        """
        return self._database.execute("DELETE FROM keys WHERE id = ?", [key_id]).rowcount > 0

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def digest_of(secret: str) -> str:
    """Return the digest of a secret for storage. A secret is random and long: it needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: tuple[str, str, str, float]) -> Key:
    key_id, tenant, role, created = row
    return Key(key_id, tenant, Role(role), created)
