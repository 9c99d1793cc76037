"""The installation's key. It has a file of its own, so that the data can be copied elsewhere without the key."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from sessions.model.errors import SettingsUnreadable

#: bytes of the key
KEY = 32


class KeyFile:
    """A file with a key in hexadecimal digits, readable only by its user."""

    def __init__(self, path: Path) -> None:
        """Keep the path. No file is read or made yet."""
        self._file = path.expanduser()

    def read_or_make(self) -> bytes:
        """Return the key. If there is no file, it is made with a new key.

        Raises:
            SettingsUnreadable: when the file cannot be read.
            OSError: when there is no file and a new one cannot be written.
        """
        if not self._file.exists():
            self._make()
        return self.read()

    def read(self) -> bytes:
        """Return the key.

        Raises:
            SettingsUnreadable: when the file is missing or damaged.
        """
        try:
            key = bytes.fromhex(self._file.read_text("ascii").strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY:
            raise SettingsUnreadable("the file with this installation's key is missing or damaged")
        return key

    def _make(self) -> None:
        """Write a file with a new key, atomically. If another process has made the file meanwhile, that one stays."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._file.with_name(f"{self._file.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(KEY) + "\n")
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):
                self._file.hardlink_to(draft)
        finally:
            draft.unlink()
