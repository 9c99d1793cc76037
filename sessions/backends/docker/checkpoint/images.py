"""Checkpoints on disk: whole, or not there at all, and together within a bound.

A checkpoint is a directory named by its key, with runsc's files and `manifest.json`: their sizes and digests, which
modules its kernel has imported, and the container image that its files are from. It becomes visible under its name when
it is complete. Only the gateway's user may enter.

When a kernel was restored from it, `proof` remembers the condition of its files. As long as that is the same, a gateway
needs neither read them nor restore a kernel to know that the checkpoint is good. `proof-of-sleep` does the same for a
kernel that was restored from it, slept, and was continued with in each way.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessions.backends.docker.checkpoint.runtime import CheckpointFailed, TooLarge

_MANIFEST = "manifest.json"
_PROOF, _SLEEP_PROOF = "proof", "proof-of-sleep"
PARTIAL = ".partial"
#: id of the machine's present start: after another one, files may be damaged and the processor may be another model
_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: bytes that stay free on the disk
_FREE_MIN = 1024**3


@dataclass(frozen=True, slots=True)
class Image:
    """A complete checkpoint of a sandbox whose kernel waits for its keys."""

    path: Path
    #: id of the container image that the sandbox was made from
    source: str
    #: modules that the kernel has imported, or tried to
    modules: frozenset[str]
    #: bytes of each file
    sizes: tuple[tuple[str, int], ...]
    #: the machine's start, and size, times and inode of each file, from before the files were read
    condition: str = field(compare=False, repr=False)

    def whole(self) -> bool:
        """Return whether all files have the size that they had. Takes microseconds."""
        try:
            return all((self.path / name).stat().st_size == size for name, size in self.sizes)
        except OSError:
            return False


class Images:
    """The checkpoints of one installation. All methods block."""

    def __init__(self, directory: Path, most: int | None = None) -> None:
        """Set the place.

        Args:
            directory: made if it is absent.
            most: bytes of all checkpoints together; None: somebody else bounds them.
        """
        self.directory = directory
        self._most = most

    def find(self, key: str) -> Image | None:
        """Return a checkpoint, if it is complete and unchanged. One that is not is removed."""
        path = self.directory / key
        try:
            image, digests = _read(path)
            same = all(_digest(path / name) == digest for name, digest in digests.items())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        if not same:
            self.remove(key)
            return None
        return image

    def proven(self, key: str) -> Image | None:
        """Return a checkpoint that was proven since the machine's start, if its files were not touched since.

        Takes microseconds.
        """
        path = self.directory / key
        try:
            image, _ = _read(path)
            return image if (path / _PROOF).read_text() == image.condition else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember_proof(self, image: Image) -> None:
        """Remember that a kernel was restored from a checkpoint. If the disk is full, it is proven again later."""
        with suppress(OSError):
            (image.path / _PROOF).write_text(image.condition)

    def sleep_is_proven(self, image: Image) -> bool:
        """Return whether a kernel of this checkpoint has slept and was continued with since the machine's start."""
        with suppress(OSError):
            return (image.path / _SLEEP_PROOF).read_text() == image.condition
        return False

    def remember_sleep(self, image: Image) -> None:
        """Remember that a kernel of a checkpoint has slept and was continued with."""
        with suppress(OSError):
            (image.path / _SLEEP_PROOF).write_text(image.condition)

    def begin(self, expected: int, name: str = "") -> Path:
        """Return a new empty directory for a checkpoint.

        Args:
            expected: bytes that it will take.
            name: of the directory while the checkpoint is incomplete, followed by `PARTIAL`; empty: a new one.

        Raises:
            TooLarge: when it would not fit.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._most is not None:
            used = sum(file.stat().st_size for file in self.directory.glob("*/*"))
            if used + expected > self._most:
                raise TooLarge(
                    f"it would take {expected} bytes, {used} are in use, and `checkpoint_disk` is {self._most}"
                )
        need_room(self.directory, expected)
        path = self.directory / f"{name or uuid.uuid4().hex}{PARTIAL}"
        path.mkdir(mode=0o700)
        return path

    def finish(self, begun: Path, key: str, source: str, modules: Collection[str]) -> None:
        """Give a checkpoint its name.

        Args:
            begun: its directory.
            key: the name.
            source: id of the container image.
            modules: what its kernel has imported.

        Raises:
            CheckpointFailed: when a file is missing or empty.
        """
        files = {file.name: (file.stat().st_size, _digest(file)) for file in sorted(begun.iterdir())}
        if "checkpoint.img" not in files or not all(size for size, _ in files.values()):
            raise CheckpointFailed(f"the runtime has not written all files: {files}")
        manifest = {"source": source, "modules": sorted(modules), "files": files}
        (begun / _MANIFEST).write_text(json.dumps(manifest))
        begun.rename(self.directory / key)

    def remove(self, name: str) -> None:
        """Remove a checkpoint, or the directory that was begun for one."""
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def remove_others(self, keys: Collection[str]) -> None:
        """Remove all checkpoints but these, and what is left of incomplete ones. None may be under way."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name not in keys:
                    self.remove(path.name)


def need_room(directory: Path, expected: int) -> None:
    """Check that a disk has room for something, and some more for others.

    Raises:
        TooLarge: when it has not.
    """
    if (free := shutil.disk_usage(directory).free) < expected + _FREE_MIN:
        raise TooLarge(f"only {free} bytes are free on the disk of {directory}")


def _read(path: Path) -> tuple[Image, dict[str, str]]:
    """Return a checkpoint as its manifest describes it, and the digests of its files.

    Raises:
        OSError, ValueError, KeyError, TypeError: when it is not there, or not complete.
    """
    manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_bytes())
    files = manifest["files"].items()
    stats = {name: (path / name).stat() for name in (_MANIFEST, *manifest["files"])}
    marks = {name: (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for name, stat in stats.items()}
    condition = json.dumps({"boot": _BOOT.read_text().strip(), "files": marks})
    sizes = tuple((name, size) for name, (size, _) in files)
    image = Image(path, manifest["source"], frozenset(manifest["modules"]), sizes, condition)
    return image, {name: digest for name, (_, digest) in files}


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
