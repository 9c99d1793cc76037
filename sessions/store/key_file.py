"""The installation's key: a file of its own, so that data can be copied elsewhere without it."""

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
        """Keep the path; read or make no file yet."""
        self._file = path.expanduser()

    def made(self) -> bytes:
        """Return the key, made if there is none.

        Raises:
            SettingsUnreadable: when it cannot be read.
            OSError: when there is none and a new one cannot be written.
        """
        if not self._file.exists():
            self._make()
        return self.read()

    def read(self) -> bytes:
        """Return the key.

        Raises:
            SettingsUnreadable: when it is missing or damaged.
        """
        try:
            key = bytes.fromhex(self._file.read_text("ascii").strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY:
            raise SettingsUnreadable("the file with this installation's key is missing or damaged")
        return key

    def _make(self) -> None:
        """Write a new key atomically, unless another process is quicker."""
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
