"""Encryption of stored secrets, with a key in a separate file."""

from __future__ import annotations

import os
import secrets
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.errors import SettingsUnreadable

#: bytes of the key, and of the nonce, which is never used twice with a key
KEY, NONCE = 32, 12


class Seal:
    """Encrypts with AES-256-GCM. Each text is bound to the name of its setting and cannot be moved to another name."""

    def __init__(self, key_file: Path) -> None:
        """Keep the path; read or make no file yet.

        Args:
            key_file: file with the key in hexadecimal digits; made with the first secret, readable only by its user.
        """
        self._file = key_file.expanduser()

    def close(self, name: str, text: str) -> str:
        """Encrypt a text.

        Raises:
            SettingsUnreadable: when the key cannot be read.
            OSError: when there is no key and a new one cannot be written.
        """
        if not self._file.exists():
            self._make()
        nonce = secrets.token_bytes(NONCE)
        return b64encode(nonce + AESGCM(self._key()).encrypt(nonce, text.encode(), name.encode())).decode()

    def open(self, name: str, sealed: str) -> str:
        """Decrypt a text.

        Raises:
            SettingsUnreadable: when the text was encrypted with another key or under another name, or is damaged.
        """
        key = self._key()
        try:
            content = b64decode(sealed, validate=True)
            return AESGCM(key).decrypt(content[:NONCE], content[NONCE:], name.encode()).decode()
        except (InvalidTag, ValueError):
            raise SettingsUnreadable(setting=name) from None

    def _key(self) -> bytes:
        try:
            key = bytes.fromhex(self._file.read_text("ascii").strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY:
            raise SettingsUnreadable("the file with the key of the providers' secrets is missing or damaged")
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
