"""What the host counts of a container, without asking the engine.

A gateway that runs in a container itself sees no control groups but its own, and knows nothing then.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
#: where the engine puts a container, by the version of control groups and by who keeps them
_PLACES = (
    "system.slice/docker-{id}.scope/memory.current",
    "docker/{id}/memory.current",
    "memory/docker/{id}/memory.usage_in_bytes",
    "memory/system.slice/docker-{id}.scope/memory.usage_in_bytes",
)


class MemoryCount:
    """The memory of one container."""

    def __init__(self, container: str, root: Path = ROOT) -> None:
        """Nothing is looked for yet.

        Args:
            container: its full id.
            root: where control groups are.
        """
        self._files = [root / place.format(id=container) for place in _PLACES]

    def read(self) -> int | None:
        """Bytes that it uses now; None: it is gone, or out of sight."""
        for file in self._files:
            with suppress(OSError):
                size = int(file.read_text())
                self._files = [file]  # it is there for as long as the container is
                return size
        return None
