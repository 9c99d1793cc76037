"""Encrypts the files of images, piece by piece, and decrypts them.

A *sealed* file is an encrypted one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.engine.breaker import unavailable
from sessions.backends.docker.profile import SleepSettings
from sessions.model.checkpoint import CannotWake

#: bytes of content in a piece; the event loop waits for at most one piece, 0.3 ms
PIECE = 256 * 1024
_KEY, _SALT, _TAG = 32, 16, 16


class Damaged(Exception):
    """A file was changed after its encryption, or was encrypted with another key."""


def encrypt_file(key: bytes, name: str, plain: Path, sealed: Path) -> None:
    """Encrypt a file to a new file, and remove the plain one.

    Args:
        key: the installation's key.
        name: id of the image and name of the file in it.
        plain: the plain file.
        sealed: path of the new file.

    Raises:
        OSError: when a file cannot be read or written.
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


def decrypt_file(key: bytes, name: str, sealed: Path, plain: Path) -> None:
    """Decrypt a file to a new file.

    Args:
        key: the installation's key.
        name: id of the image and name of the file in it.
        sealed: the encrypted file.
        plain: path of the new file.

    Raises:
        Damaged: when the file was changed, cut or renamed, or was encrypted with another key.
        OSError: when a file cannot be read or written.
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


#: names of the files that gVisor writes
MEMORY = ("checkpoint.img", "pages_meta.img", "pages.img")
#: end of the name of a directory with decrypted files
PLAIN = ".plain"
_SEALED = ".sealed"


def encrypt_all(settings: SleepSettings, image: str, begun: Path, names: Sequence[str]) -> int:
    """Encrypt the files of an image. Blocks.

    Args:
        settings: settings with the key.
        image: id of the image.
        begun: directory with the image's files.
        names: names of the files. All must exist, and none may be empty.

    Returns:
        bytes of the encrypted files.

    Raises:
        CheckpointFailed: when a file is missing or empty, or there are other files.
        OSError: when a file cannot be read or written.
    """
    found = {file.name for file in begun.iterdir() if file.stat().st_size}
    if found != set(names):
        raise CheckpointFailed(f"the runtime has written {sorted(found)}")
    key = settings.key()
    for name in names:
        encrypt_file(key, f"{image}/{name}", begun / name, begun / f"{name}{_SEALED}")
    return sum(file.stat().st_size for file in begun.iterdir())


@contextmanager
def decrypted(settings: SleepSettings | None, image: str, names: Sequence[str]) -> Iterator[Path]:
    """Yield a directory with decrypted files of an image. It is removed at the end of the `with` block. Blocks.

    Errors of the block itself pass unchanged: an engine that does not answer is an OSError, too.

    Raises:
        CannotWake: when a file is damaged or missing, or sleep was turned off.
        BackendUnavailable: when the disk cannot be read or written.
    """
    if settings is None:
        raise CannotWake("sleep was turned off")
    key, plain = settings.key(), settings.directory / f"{uuid.uuid4().hex}{PLAIN}"
    try:
        try:
            plain.mkdir(mode=0o700)
            for name in names:
                decrypt_file(key, f"{image}/{name}", settings.directory / image / f"{name}{_SEALED}", plain / name)
        except (Damaged, FileNotFoundError) as error:
            raise CannotWake("its memory on disk is damaged or gone") from error
        except OSError as error:
            raise unavailable(f"a kernel's memory on disk cannot be read: {error.strerror}") from error
        yield plain
    finally:
        shutil.rmtree(plain, ignore_errors=True)
