"""Keys that are made and revoked while the gateway runs: their digests, in SQLite.

The command `kernel-gateway keys` writes the same file that the gateway reads; a change counts from the next request on.
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

#: what a key begins with, so that it is known for one where it should not stand
PREFIX = "kg-"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, role TEXT NOT NULL, created REAL NOT NULL
) STRICT
"""


class Role(StrEnum):
    """What the holder of a key may do."""

    #: use sessions of its tenant
    USER = "user"
    #: and look after the gateway
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without what opens anything."""

    id: str
    tenant: str
    role: Role
    #: seconds since 1970
    created_at: float


class KeyStore:
    """All such keys of one installation."""

    def __init__(self, state_dir: Path) -> None:
        """Open them.

        Args:
            state_dir: of the gateway; made if absent.
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
            it, and the secret that is known to nobody else and kept nowhere.

        Raises:
            InvalidRequest: the tenant's name is not allowed.
        """
        secret = PREFIX + secrets.token_urlsafe(32)
        key = Key(secrets.token_hex(4), valid_name("tenant", tenant), role, time.time())
        self._database.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?)", [key.id, digest_of(secret), key.tenant, key.role, key.created_at]
        )
        return key, secret

    def find(self, secret: str) -> Key | None:
        """The key that a secret is of. How long it takes tells at most something about the secret's digest."""
        if not secret.startswith(PREFIX):
            return None
        row = self._database.execute(
            "SELECT id, tenant, role, created FROM keys WHERE digest = ?", [digest_of(secret)]
        ).fetchone()
        return _key(row) if row else None

    def get(self, key_id: str) -> Key | None:
        """The key of this id; None: there is none, or none any more."""
        row = self._database.execute("SELECT id, tenant, role, created FROM keys WHERE id = ?", [key_id]).fetchone()
        return _key(row) if row else None

    def all(self) -> list[Key]:
        """Every key, oldest first."""
        rows = self._database.execute("SELECT id, tenant, role, created FROM keys ORDER BY created, id")
        return [_key(row) for row in rows]

    def revoke(self, key_id: str) -> bool:
        """Let a key open nothing any more.

        Returns:
            whether there was one of this id.
        """
        return self._database.execute("DELETE FROM keys WHERE id = ?", [key_id]).rowcount > 0

    def close(self) -> None:
        """Free the database."""
        self._database.close()


def digest_of(secret: str) -> str:
    """What is kept of a secret. It is random and long: no salt and no slow hash are needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: tuple[str, str, str, float]) -> Key:
    key_id, tenant, role, created = row
    return Key(key_id, tenant, Role(role), created)
