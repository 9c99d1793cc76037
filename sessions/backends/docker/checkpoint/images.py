"""Images on disk. An image is either complete or not visible, and the size of all images is limited.

An image is a directory named by its key. It has runsc's files and `manifest.json`, which contains their sizes and
digests, the modules that the kernel has imported, and the container image that the sandbox was made from. The directory
gets its name when it is complete. Only the gateway's user may enter it.

When a kernel was restored from an image, the file `proof` records the condition of the image's files. As long as the
condition is the same, the image counts as good: a gateway need not read its files or restore a kernel again. The file
`proof-of-sleep` records the same for a kernel of the image that has slept, and was continued in each way.
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
#: id of the machine's present start; after a restart, files may be damaged, and the processor may be another model
_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: bytes of the disk that images leave free
_FREE_MIN = 1024**3


@dataclass(frozen=True, slots=True)
class Image:
    """A complete golden image: a sandbox whose kernel waits for its keys."""

    path: Path
    #: id of the container image that the sandbox was made from
    source: str
    #: modules that the kernel has imported, or tried to import
    modules: frozenset[str]
    #: name and bytes of each file
    sizes: tuple[tuple[str, int], ...]
    #: id of the machine's start, and size, times and inode of each file, from before the files were read
    condition: str = field(compare=False, repr=False)

    def intact(self) -> bool:
        """Return whether all files still have their size. Takes microseconds."""
        try:
            return all((self.path / name).stat().st_size == size for name, size in self.sizes)
        except OSError:
            return False


class Images:
    """The images in one directory. All methods block."""

    def __init__(self, directory: Path, most: int | None = None) -> None:
        """Keep the arguments. No file is made yet.

        Args:
            directory: directory of the images. It is made if absent.
            most: bytes that all images together may take. None means that another class limits them.
        """
        self.directory = directory
        self._most = most

    def find(self, key: str) -> Image | None:
        """Return an image, if it is complete and unchanged. Otherwise it is removed."""
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
        """Return an image, if it was proven since the machine's start, and its files were not changed since then.

        Takes microseconds.
        """
        path = self.directory / key
        try:
            image, _ = _read(path)
            return image if (path / _PROOF).read_text() == image.condition else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember_proof(self, image: Image) -> None:
        """Record that a kernel was restored from an image. If the disk is full, the image is proven again later."""
        with suppress(OSError):
            (image.path / _PROOF).write_text(image.condition)

    def sleep_is_proven(self, image: Image) -> bool:
        """Return whether a kernel of this image has slept, and was continued, since the machine's start."""
        with suppress(OSError):
            return (image.path / _SLEEP_PROOF).read_text() == image.condition
        return False

    def remember_sleep(self, image: Image) -> None:
        """Record that a kernel of an image has slept, and was continued."""
        with suppress(OSError):
            (image.path / _SLEEP_PROOF).write_text(image.condition)

    def begin(self, expected: int, name: str = "") -> Path:
        """Make an empty directory for an image, and return its path.

        Args:
            expected: bytes that the image will take.
            name: name of the directory while the image is incomplete, without `PARTIAL`. Empty means a random name.

        Raises:
            TooLarge: when there is not enough room.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._most is not None:
            used = sum(file.stat().st_size for file in self.directory.glob("*/*"))
            if used + expected > self._most:
                raise TooLarge(f"it would take {expected} bytes, {used} are in use, and `golden_disk` is {self._most}")
        need_room(self.directory, expected)
        path = self.directory / f"{name or uuid.uuid4().hex}{PARTIAL}"
        path.mkdir(mode=0o700)
        return path

    def finish(self, begun: Path, key: str, source: str, modules: Collection[str]) -> None:
        """Write the manifest of an image, and give the image its name.

        Args:
            begun: directory of the image.
            key: name of the image.
            source: id of the container image that the sandbox was made from.
            modules: modules that the kernel has imported.

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
        """Remove an image, or the directory of an incomplete one."""
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def remove_others(self, keys: Collection[str]) -> None:
        """Remove all other images, also incomplete ones. No image may be written at this time."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name not in keys:
                    self.remove(path.name)


def need_room(directory: Path, expected: int) -> None:
    """Check that a disk has room for so many bytes, and that `_FREE_MIN` bytes stay free.

    Raises:
        TooLarge: when there is not enough room.
    """
    if (free := shutil.disk_usage(directory).free) < expected + _FREE_MIN:
        raise TooLarge(f"only {free} bytes are free on the disk of {directory}")


def _read(path: Path) -> tuple[Image, dict[str, str]]:
    """Return an image, as its manifest describes it, and the digests of its files.

    Raises:
        OSError, ValueError, KeyError, TypeError: when the image does not exist, or is incomplete.
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
