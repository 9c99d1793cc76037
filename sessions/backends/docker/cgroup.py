"""Memory use of a container, read from the host's control groups and not from the engine.

A gateway that runs in a container itself sees only its own control group, and reads nothing then.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
#: paths of a container's memory count, by version and driver of the control groups
_PLACES = (
    "system.slice/docker-{id}.scope/memory.current",
    "docker/{id}/memory.current",
    "memory/docker/{id}/memory.usage_in_bytes",
    "memory/system.slice/docker-{id}.scope/memory.usage_in_bytes",
)


class MemoryCount:
    """Reads the memory count of one container."""

    def __init__(self, container: str, root: Path = ROOT) -> None:
        """Set the paths to try; no file is read yet.

        Args:
            container: full id of the container.
            root: folder of the control groups.
        """
        self._files = [root / place.format(id=container) for place in _PLACES]

    def read(self) -> int | None:
        """Return the bytes in use now; None: the container is gone, or not visible from here."""
        for file in self._files:
            with suppress(OSError):
                size = int(file.read_text())
                self._files = [file]  # it exists as long as the container
                return size
        return None
