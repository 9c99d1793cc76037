"""What `doctor` says of a machine, as far as that needs no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.backends.docker.doctor import MOUNTS, _place

LIST = """\
overlay / overlay rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/sda1 /var/lib ext4 rw 0 0
tmpfs /var/lib/gateway tmpfs rw 0 0
/dev/sda2 /var/lib/gateway ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("directory", "in_memory"),
    [
        ("/run/gateway/asleep", "/run"),
        ("/var/lib/other/asleep", None),
        ("/var/lib/gateway/asleep", None),  # mounted above the one in memory
        ("/runs/asleep", None),
    ],
)
def test_it_says_when_checkpoints_would_count_as_memory_of_their_kernels(directory: str, in_memory: str | None) -> None:
    said = _place(Path(directory), LIST)
    assert ("counts as memory" in said) is (in_memory is not None)
    assert said.startswith(in_memory or "on ")


def test_it_knows_where_this_directory_is(tmp_path: Path) -> None:
    assert _place(tmp_path, MOUNTS.read_text())
