"""Encrypted checkpoints: what is written is read again, and nothing else is."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from sessions.backends.docker.checkpoint.encryption import PIECE, Damaged, decrypt_file, decrypted, encrypt_file
from sessions.backends.docker.profile import SleepSettings

KEY = bytes(range(32))
#: bytes of a sealed piece, and of what precedes the first one
SEALED, HEAD = PIECE + 16, 16


def sealed(directory: Path, content: bytes, name: str = "image/pages") -> Path:
    (directory / "plain").write_bytes(content)
    encrypt_file(KEY, name, directory / "plain", directory / "sealed")
    assert not (directory / "plain").exists()
    return directory / "sealed"


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_what_is_sealed_is_unsealed(tmp_path: Path, size: int) -> None:
    content = secrets.token_bytes(size)
    file = sealed(tmp_path, content)
    assert size < 16 or content[:16] not in file.read_bytes()
    decrypt_file(KEY, "image/pages", file, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == content
    assert (tmp_path / "again").stat().st_mode & 0o077 == 0


def pieces(whole: bytes) -> list[bytes]:
    """Return what precedes the first piece, and the pieces."""
    return [whole[:HEAD], *(whole[start : start + SEALED] for start in range(HEAD, len(whole), SEALED))]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "nothing is left": lambda whole: whole[:0],
    "the last piece is missing": lambda whole: b"".join(pieces(whole)[:-1]),
    "a piece is cut": lambda whole: whole[:-1],
    "pieces have changed places": lambda whole: b"".join(pieces(whole)[place] for place in (0, 2, 1, 3)),
    "a piece is repeated": lambda whole: b"".join(pieces(whole)[place] for place in (0, 1, 1, 2, 3)),
    "a byte is added": lambda whole: whole + b"x",
    "a bit is changed": lambda whole: whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:],
    "the salt is changed": lambda whole: bytes([whole[0] ^ 1]) + whole[1:],
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_changed_file_is_refused(tmp_path: Path, harm: str) -> None:
    file = sealed(tmp_path, b"memory" * (PIECE // 2))
    whole = file.read_bytes()
    file.write_bytes(HARMS[harm](whole))
    with pytest.raises(Damaged):
        decrypt_file(KEY, "image/pages", file, tmp_path / "again")


@pytest.mark.parametrize(("key", "name"), [(bytes(32), "image/pages"), (KEY, "image/other"), (KEY, "other/pages")])
def test_another_key_and_another_place_are_refused(tmp_path: Path, key: bytes, name: str) -> None:
    file = sealed(tmp_path, b"memory")
    with pytest.raises(Damaged):
        decrypt_file(key, name, file, tmp_path / "again")


def test_an_engine_that_does_not_answer_is_not_taken_for_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    """The engine's guard must see the error: it counts failures, and says what has happened."""

    def restored() -> None:
        with decrypted(SleepSettings(tmp_path, lambda: KEY), "image", []):
            raise requests.ReadTimeout("Read timed out")

    with pytest.raises(requests.ReadTimeout):
        restored()
    assert not list(tmp_path.iterdir())
