"""Encryption of stored secrets, with a key in a separate file."""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.model.errors import SettingsUnreadable
from sessions.store.key_file import KeyFile

#: bytes of the nonce, which is never used twice with a key
NONCE = 12


class Seal:
    """Encrypts with AES-256-GCM. Each text is bound to the name of its setting and cannot be moved to another name."""

    def __init__(self, key_file: Path) -> None:
        """Keep the path; read or make no file yet.

        Args:
            key_file: file with the key in hexadecimal digits; made with the first secret, readable only by its user.
        """
        self._key = KeyFile(key_file)

    def encrypt(self, name: str, text: str) -> str:
        """Encrypt a text.

        Raises:
            SettingsUnreadable: when the key cannot be read.
            OSError: when there is no key and a new one cannot be written.
        """
        nonce = secrets.token_bytes(NONCE)
        return b64encode(nonce + AESGCM(self._key.read_or_make()).encrypt(nonce, text.encode(), name.encode())).decode()

    def decrypt(self, name: str, sealed: str) -> str:
        """Decrypt a text.

        Raises:
            SettingsUnreadable: when the text was encrypted with another key or under another name, or is damaged.
        """
        key = self._key.read()
        try:
            content = b64decode(sealed, validate=True)
            return AESGCM(key).decrypt(content[:NONCE], content[NONCE:], name.encode()).decode()
        except (InvalidTag, ValueError):
            raise SettingsUnreadable(setting=name) from None
