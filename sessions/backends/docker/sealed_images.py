"""The files of an image: encrypted on disk, and decrypted for the moment in which a kernel continues from them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sessions.asleep import CannotWake
from sessions.backends.docker.breaker import unavailable
from sessions.backends.docker.checkpoints.runtime import CheckpointFailed
from sessions.backends.docker.checkpoints.sealing import Damaged, seal, unseal
from sessions.backends.docker.sleep_settings import SleepSettings

#: what gVisor writes
MEMORY = ("checkpoint.img", "pages_meta.img", "pages.img")
#: end of the name of a directory with decrypted files
PLAIN = ".plain"
_SEALED = ".sealed"


def seal_all(settings: SleepSettings, image: str, begun: Path, names: Sequence[str]) -> int:
    """Encrypt the files of an image. Blocks.

    Args:
        settings: with the key.
        image: id of the image.
        begun: directory with its files.
        names: of the files that there must be, none of them empty.

    Returns:
        bytes of the encrypted files.

    Raises:
        CheckpointFailed: when a file is missing, or there are others.
        OSError: when one cannot be read or written.
    """
    found = {file.name for file in begun.iterdir() if file.stat().st_size}
    if found != set(names):
        raise CheckpointFailed(f"the runtime has written {sorted(found)}")
    key = settings.key()
    for name in names:
        seal(key, f"{image}/{name}", begun / name, begun / f"{name}{_SEALED}")
    return sum(file.stat().st_size for file in begun.iterdir())


@contextmanager
def decrypted(settings: SleepSettings | None, image: str, names: Sequence[str]) -> Iterator[Path]:
    """Yield a directory with decrypted files of an image, which is removed with the context. Blocks.

    Raises:
        CannotWake: when a file is damaged or gone, or sleep was turned off.
        BackendUnavailable: when the disk cannot be read or written.
    """
    if settings is None:
        raise CannotWake("sleep was turned off")
    key, plain = settings.key(), settings.directory / f"{uuid.uuid4().hex}{PLAIN}"
    try:
        plain.mkdir(mode=0o700)
        for name in names:
            unseal(key, f"{image}/{name}", settings.directory / image / f"{name}{_SEALED}", plain / name)
        yield plain
    except (Damaged, FileNotFoundError) as error:
        raise CannotWake("its memory on disk is damaged or gone") from error
    except OSError as error:
        raise unavailable(f"a sleeping kernel cannot be read: {error.strerror}") from error
    finally:
        shutil.rmtree(plain, ignore_errors=True)
