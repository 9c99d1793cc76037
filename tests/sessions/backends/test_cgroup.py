"""The memory count of a container, read from the host's control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.backends.docker.cgroup import MemoryCount

ID = "0123abcd" * 8


@pytest.mark.parametrize(
    "place",
    [
        f"docker/{ID}/memory.current",
        f"system.slice/docker-{ID}.scope/memory.current",
        f"memory/docker/{ID}/memory.usage_in_bytes",
        f"memory/system.slice/docker-{ID}.scope/memory.usage_in_bytes",
    ],
)
def test_the_memory_count_is_found_at_every_known_path_and_ends_with_the_container(tmp_path: Path, place: str) -> None:
    count = MemoryCount(ID, tmp_path)
    assert count.read() is None
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    for size in (1, 268435456):
        file.write_text(f"{size}\n")
        assert count.read() == size
    file.unlink()
    assert count.read() is None


def test_the_memory_count_of_another_container_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "docker" / ("f" * 64) / "memory.current"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    assert MemoryCount(ID, tmp_path).read() is None
