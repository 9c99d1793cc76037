"""What `doctor` says of a machine, as far as that needs no engine."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sessions.backends.docker.doctor import MOUNTS, _place, age_of_gvisor

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


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("runsc version release-20260822.0\nspec: 1.2.1", "of 2026-08-22"),
        ("runsc version release-20251127.0", "of 2025-11-27"),
        ("runsc version release-20251126.0", "WARNING: of 2025-11-26"),
        ("runsc version release-20240729.0-12-gabc", "WARNING: of 2024-07-29"),
        ("runsc version 0.0~20240729.0\nspec: 1.2.0", "WARNING: of 2024-07-29"),  # Debian's
        ("runsc version release-20249999.0", "unknown"),
        ("runsc version VERSION_MISSING", "unknown"),
        ("", "unknown"),
    ],
)
def test_an_old_gvisor_is_told_with_where_newer_ones_are(said: str, told: str) -> None:
    age = age_of_gvisor(said, dt.date(2026, 11, 27))
    assert age.startswith(told)
    assert ("https://github.com/google/gvisor/releases" in age) is not told.startswith("of")
