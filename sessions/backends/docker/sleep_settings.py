"""Settings of sleep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SleepSettings:
    """Settings of the checkpoints that contain the memory of sleeping kernels."""

    directory: Path
    #: returns the installation's key, with which they are encrypted
    key: Callable[[], bytes]
