"""Encryption of checkpoints that contain a session's memory.

Each file is a sequence of pieces, encrypted with AES-256-GCM. A piece's nonce is its number and whether it is the last
one, so that pieces cannot be left out, repeated, moved or cut off. Source: Hoang, Reyhanitabar, Rogaway, Vizár, "Online
Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", CRYPTO 2015: the construction STREAM. Each file has a
key of its own, derived from the installation's key, a random salt, and the names of image and file.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

#: bytes of content in a piece; the event loop waits for one at most, 0.3 ms
PIECE = 256 * 1024
_KEY, _SALT, _TAG = 32, 16, 16


class Damaged(Exception):
    """A file is not what was encrypted, or was encrypted with another key."""


def seal(key: bytes, name: str, plain: Path, sealed: Path) -> None:
    """Encrypt a file to a new one, and remove it.

    Args:
        key: the installation's key.
        name: of the image and the file in it.
        plain: the file.
        sealed: the new file.

    Raises:
        OSError: when it cannot be read or written.
    """
    salt = secrets.token_bytes(_SALT)
    cipher = _cipher(key, salt, name)
    with plain.open("rb") as source, _create(sealed) as target:
        target.write(salt)
        number, piece = 0, source.read(PIECE)
        while True:
            following = source.read(PIECE)
            target.write(cipher.encrypt(_nonce(number, last=not following), piece, None))
            if not following:
                break
            number, piece = number + 1, following
        target.flush()
        os.fdatasync(target.fileno())
    plain.unlink()


def unseal(key: bytes, name: str, sealed: Path, plain: Path) -> None:
    """Decrypt a file to a new one.

    Args:
        key: the installation's key.
        name: of the image and the file in it.
        sealed: the file.
        plain: the new file.

    Raises:
        Damaged: when it was changed, cut or moved, or the key is another one.
        OSError: when it cannot be read or written.
    """
    with sealed.open("rb") as source, _create(plain) as target:
        cipher = _cipher(key, source.read(_SALT), name)
        number, piece = 0, source.read(PIECE + _TAG)
        while True:
            following = source.read(PIECE + _TAG)
            try:
                target.write(cipher.decrypt(_nonce(number, last=not following), piece, None))
            except (InvalidTag, ValueError) as error:
                raise Damaged(name) from error
            if not following:
                return
            number, piece = number + 1, following


def _cipher(key: bytes, salt: bytes, name: str) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY, salt, b"kernel-gateway checkpoint " + name.encode()).derive(key))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
