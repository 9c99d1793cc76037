"""The host's processes, as `/proc` shows them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def command_lines() -> list[list[str]]:
    """Return the words of each process's command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(file.read_bytes().decode(errors="replace").split("\0"))
    return found


def processes(container: str) -> list[str]:
    """Return the command lines of the processes that name a container."""
    return [line for line in map(" ".join, command_lines()) if container in line]


def shims() -> set[str]:
    """Return the ids of the containers that have a process of the engine."""
    found = [words for words in command_lines() if "containerd-shim" in words[0] and "-id" in words]
    return {words[words.index("-id") + 1] for words in found}
