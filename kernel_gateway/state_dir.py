"""The state directory: only one gateway uses it at a time, and generated ids and secrets are stored there."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import IO

#: file with the id of an installation
INSTANCE = "instance"
#: empty file that exists once a gateway with this state directory had sandboxed kernels
SANDBOXED = "sandboxed"


class AlreadyRunning(Exception):
    """Another gateway uses this state directory."""


def lock(state_dir: Path) -> IO[str]:
    """Lock the state directory for this process. The system releases the lock when the process ends, even by a kill.

    Raises:
        AlreadyRunning: when another gateway uses it.
    """
    file = (state_dir / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise AlreadyRunning(f"another gateway uses {state_dir}; give this one its own --state-dir") from None
    return file


def instance_id(state_dir: Path) -> str:
    """Return the id of this installation, which marks its containers and volumes. Generate it on first use."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return stored_word(state_dir / INSTANCE)


def was_used(state_dir: Path) -> bool:
    """Return whether a gateway has ever been started with a state directory."""
    return (state_dir / INSTANCE).exists()


def mark_sandboxed(state_dir: Path) -> None:
    """Remember that a gateway with this state directory has sandboxed kernels."""
    (state_dir / SANDBOXED).touch(mode=0o600)


def was_sandboxed(state_dir: Path) -> bool:
    """Return whether a gateway with this state directory ever had sandboxed kernels."""
    return (state_dir / SANDBOXED).exists()


def stored_word(path: Path) -> str:
    """Return the random word that a file holds. Generate the file on first use, so that restarts get the same word."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(uuid.uuid4().hex)
    return path.read_text().strip()
