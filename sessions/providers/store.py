"""The active provider and the configuration of each: SQLite in the state directory, secrets encrypted.

Source: RAGFlow's system settings: one JSON value under `sandbox.<provider>` for each, `sandbox.provider_type` for the
active one. Any process of this installation may write the database. Other processes see the change at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from sessions.model.errors import SettingsUnreadable
from sessions.providers.base import Config, Schema
from sessions.providers.sealing import Seal
from sessions.store.database import open_database, saving

_PREFIX = "sandbox."
_ACTIVE = "sandbox.provider_type"
_SCHEMA = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"
#: JSON key of the object that replaces a secret; its value is the encrypted text
_SEALED = "encrypted"


class ProviderStore:
    """The providers' settings of one installation."""

    def __init__(self, state_dir: Path, key_file: Path | None = None) -> None:
        """Open the settings.

        Args:
            state_dir: state directory of the gateway; made if absent.
            key_file: file with the key for secrets, made with the first secret. None means a file in the state
                directory.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seal = Seal(key_file or state_dir / "secrets.key")
        self._written = 0
        self._database = open_database(state_dir / "providers.db", _SCHEMA)

    @property
    def version(self) -> tuple[int, int]:
        """A value that differs after every change by any process. Reading it costs microseconds."""
        return self._database.execute("PRAGMA data_version").fetchone()[0], self._written

    def active(self) -> str | None:
        """Return the id of the active provider. None means that no provider was chosen.

        Raises:
            SettingsUnreadable: when the setting is damaged.
        """
        name = self._value(_ACTIVE)
        if name is None or isinstance(name, str):
            return name
        raise SettingsUnreadable(setting=_ACTIVE)

    def get(self, provider: str) -> dict[str, Any] | None:
        """Return a provider's configuration with its secrets. None means that the provider was never configured.

        Raises:
            SettingsUnreadable: when the configuration is damaged, or another key encrypted its secrets.
        """
        name = _PREFIX + provider
        config = self._value(name)
        if config is None:
            return None
        if not isinstance(config, dict):
            raise SettingsUnreadable(setting=name)
        return {field: self._opened(f"{name}.{field}", value) for field, value in config.items()}

    def put(self, provider: str, config: Config, schema: Schema, *, activate: bool = False) -> None:
        """Store a provider's configuration.

        Args:
            provider: id of the provider.
            config: checked configuration.
            schema: fields of the configuration; names the secret ones.
            activate: whether the provider becomes the active one.

        Raises:
            SettingsUnreadable: when the key for the secrets cannot be read.
            LedgerUnavailable: when the database cannot be written; nothing has changed.
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
        """Make a provider the active one.

        Raises:
            LedgerUnavailable: when the database cannot be written; nothing has changed.
        """
        with self._transaction():
            self._write(_ACTIVE, provider)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _opened(self, name: str, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(sealed := value.get(_SEALED), str):
            return self._seal.decrypt(name, sealed)
        if isinstance(value, dict | list):
            raise SettingsUnreadable(setting=name)
        return value

    def _sealed(self, name: str, secret: str) -> Mapping[str, str]:
        return {_SEALED: self._seal.encrypt(name, secret)}

    def _value(self, name: str) -> Any:
        """Return the value of a setting. None means that the setting does not exist."""
        try:
            row = self._database.execute("SELECT value FROM settings WHERE name = ?", [name]).fetchone()
            return None if row is None else orjson.loads(row[0])
        except (sqlite3.DatabaseError, orjson.JSONDecodeError):
            raise SettingsUnreadable(setting=name) from None

    def _write(self, name: str, value: Any) -> None:
        self._database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", [name, orjson.dumps(value).decode()])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write everything inside or nothing. A commit changes `version`."""
        with saving("the providers' settings"), self._database.transaction():
            yield
        self._written += 1
