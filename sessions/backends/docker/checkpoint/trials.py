"""Trials: a container that continues with a kernel's memory, and whose changes of the session's files are thrown away.

A trial proves that an image can be continued, while the kernel itself is held. Its code runs for a moment, so it must
not write to the session's files: it sees them through an overlay (Linux's overlayfs), whose upper directory takes all
changes. That directory is in the host's `/dev/shm`, so that what is written counts as the memory of the container.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from docker.errors import NotFound
from docker.types import DriverConfig, Mount

from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.container.cleanup import VOLUMES_WAIT
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import UID, WORKSPACE, DockerSettings, volume_names

#: a file system in memory, on every Linux
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directories in it are private


@dataclass(frozen=True, slots=True)
class Trial:
    """The workspace of one trial."""

    #: its name
    workspace: str
    #: directory on the host with what the trial writes
    changes: Path
    #: the volume that the engine makes for it
    volume: Mount


def prepare(engine: Engine, settings: DockerSettings, workspace: str) -> Trial:
    """Make the directories of a trial. Blocks.

    Args:
        engine: has mounted the session's files, because a container uses them.
        settings: of the backend.
        workspace: the session's.

    Raises:
        CheckpointFailed: when the directories cannot be made.
        APIError: when the engine refused.
    """
    files = engine.api.inspect_volume(volume_names(workspace)[0])["Mountpoint"]
    name = f"trial-{uuid.uuid4().hex}"
    changes = _SHARED_MEMORY / f"{_prefix(settings)}{name}"
    upper, work = changes / "upper", changes / "work"
    try:
        for directory in (changes, upper, work):
            directory.mkdir(mode=0o700)
        os.chown(upper, UID, UID)  # it is what the trial sees as its root directory
    except OSError as error:
        raise CheckpointFailed(f"{changes} cannot be made: {error.strerror}") from error
    options = f"nosuid,nodev,lowerdir={files},upperdir={upper},workdir={work}"
    volume = Mount(
        target=WORKSPACE,
        source=volume_names(name)[0],
        type="volume",
        no_copy=True,
        labels=settings.labels,
        driver_config=DriverConfig("local", {"type": "overlay", "device": "overlay", "o": options}),
    )
    return Trial(name, changes, volume)


async def end(engine: Engine, trial: Trial, owner: str) -> None:
    """Remove the volume and the directories of a trial whose container is gone; later, if the engine fails now.

    Args:
        engine: has the volume.
        trial: the trial.
        owner: owner of the calls; see `Engine.call`.
    """
    removal = engine.insist(clear, engine, trial, name=f"removal of {trial.workspace}", owner=owner)
    await asyncio.wait({removal}, timeout=VOLUMES_WAIT)


def clear(engine: Engine, trial: Trial) -> None:
    """Remove the volume and the directories of a trial whose container is gone. Blocks.

    Raises:
        APIError: when the engine refused.
    """
    with suppress(NotFound):
        engine.api.remove_volume(trial.volume["Source"], force=True)
    shutil.rmtree(trial.changes, ignore_errors=True)


def clear_all(settings: DockerSettings) -> None:
    """Remove the directories that the trials of earlier gateways have left. Blocks."""
    for directory in _SHARED_MEMORY.glob(f"{_prefix(settings)}*"):
        shutil.rmtree(directory, ignore_errors=True)


def _prefix(settings: DockerSettings) -> str:
    return f"kernel-gateway-{settings.instance}-"
