"""What `make bench` has measured, kept as JSON between its parts, so that one part can be measured again alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pydantic import TypeAdapter

#: the values of each measurement, in seconds unless its name says otherwise
Figures = dict[str, list[float]]
#: by way: its figures, or the reason why this machine has none
Ways = dict[str, Figures | str]


@dataclass
class Part:
    """One part of the benchmark."""

    #: day in UTC
    date: str
    #: by isolation: the ways, or the reason why this machine has none of them
    found: dict[str, Ways | str] = field(default_factory=dict)


@dataclass
class Results:
    """All parts, and the machine on which they were measured."""

    machine: str = ""
    versions: str = ""
    parts: dict[str, Part] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what an earlier run has kept; nothing if there is no such file."""
        return TypeAdapter(cls).validate_json(path.read_bytes()) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Keep everything for a later run."""
        path.write_bytes(orjson.dumps(self))
