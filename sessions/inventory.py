"""What code in a sandbox finds installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inventory:
    """What code finds installed, in all languages' kernels."""

    #: version of the Python interpreter
    python: str
    #: version of each Python package, by its normalized name, and of interpreters that are none
    packages: Mapping[str, str]
