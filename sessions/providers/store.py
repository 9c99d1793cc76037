"""Which provider is used, and how each is configured: SQLite in the state directory, secrets encrypted.

Source: RAGFlow's system settings: one JSON value under `sandbox.<provider>` for each, `sandbox.provider_type` for the
active one. Any process of this installation may write it; the others see at once that it has changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from sessions.errors import LedgerUnavailable, SettingsUnreadable
from sessions.providers.base import Config, Schema
from sessions.providers.sealing import Seal

#: seconds to wait for whoever else writes
LOCKED_MAX = 1.0

_PREFIX = "sandbox."
_ACTIVE = "sandbox.provider_type"
_SCHEMA = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
#: what stands in place of a secret, around its encrypted text
_SEALED = "encrypted"


class ProviderStore:
    """The providers' settings of one installation."""

    def __init__(self, state_dir: Path, key_file: Path | None = None) -> None:
        """Open them.

        Args:
            state_dir: of the gateway; made if absent.
            key_file: with the key for secrets, made with the first of them; None: in the state directory.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = state_dir / "providers.db"
        self._seal = Seal(key_file or state_dir / "secrets.key")
        self._written = 0
        self._database = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_MAX)
        path.chmod(0o600)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(_SCHEMA)

    @property
    def version(self) -> tuple[int, int]:
        """What changes with every change, whoever made it. It costs microseconds."""
        return self._database.execute("PRAGMA data_version").fetchone()[0], self._written

    def active(self) -> str | None:
        """The id of the provider that is used; None: none was chosen.

        Raises:
            SettingsUnreadable: what stands there is damaged.
        """
        name = self._value(_ACTIVE)
        if name is None or isinstance(name, str):
            return name
        raise SettingsUnreadable(setting=_ACTIVE)

    def get(self, provider: str) -> dict[str, Any] | None:
        """A provider's configuration, with its secrets; None: it was never configured.

        Raises:
            SettingsUnreadable: it is damaged, or its secrets are of another key.
        """
        name = _PREFIX + provider
        config = self._value(name)
        if config is None:
            return None
        if not isinstance(config, dict):
            raise SettingsUnreadable(setting=name)
        return {field: self._opened(f"{name}.{field}", value) for field, value in config.items()}

    def put(self, provider: str, config: Config, schema: Schema, *, activate: bool = False) -> None:
        """Keep a provider's configuration.

        Args:
            provider: its id.
            config: as it was checked.
            schema: which of its fields are secrets.
            activate: it is the one that is used from now on.

        Raises:
            SettingsUnreadable: the key for its secrets cannot be read.
            LedgerUnavailable: it cannot be written; nothing has changed.
        """
        name = _PREFIX + provider
        with self._transaction():
            sealed = {
                field: self._sealed(f"{name}.{field}", value) if schema[field].secret and value else value
                for field, value in config.items()
            }
            self._write(name, sealed)
            if activate:
                self._write(_ACTIVE, provider)

    def activate(self, provider: str) -> None:
        """Use a provider from now on.

        Raises:
            LedgerUnavailable: it cannot be written; nothing has changed.
        """
        with self._transaction():
            self._write(_ACTIVE, provider)

    def close(self) -> None:
        """Free the database."""
        self._database.close()

    def _opened(self, name: str, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(sealed := value.get(_SEALED), str):
            return self._seal.open(name, sealed)
        if isinstance(value, dict | list):
            raise SettingsUnreadable(setting=name)
        return value

    def _sealed(self, name: str, secret: str) -> Mapping[str, str]:
        return {_SEALED: self._seal.close(name, secret)}

    def _value(self, name: str) -> Any:
        """What stands under a name; None: nothing."""
        try:
            row = self._database.execute("SELECT value FROM settings WHERE name = ?", [name]).fetchone()
            return None if row is None else orjson.loads(row[0])
        except (sqlite3.DatabaseError, orjson.JSONDecodeError):
            raise SettingsUnreadable(setting=name) from None

    def _write(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", [name, orjson.dumps(value).decode()])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing; the version has changed when it is left."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
        except (sqlite3.Error, OSError) as error:
            raise LedgerUnavailable("the providers' settings cannot be saved") from error
        self._written += 1
