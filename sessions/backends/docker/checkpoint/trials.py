"""Trials: a second container is restored from a kernel's image, and its changes of the session's files are discarded.

A trial proves that an image can be restored, while the kernel itself is held. The kernel's code runs for a moment in
the trial, so it must not write to the session's files. It sees them through an overlay (Linux's overlayfs), whose upper
directory gets all changes; so it sees `/tmp`, if containers share it. The upper directories are in the host's
`/dev/shm`, so changes count as memory of the container.
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
from sessions.backends.docker.profile import UID, Disk, DockerSettings, disks_of
from sessions.model.values import Limits

#: directory of a file system in memory, which every Linux has
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directories in it are private


@dataclass(frozen=True, slots=True)
class Trial:
    """The workspace of one trial."""

    #: name of the workspace
    workspace: str
    #: directory on the host that gets the trial's changes of files
    changes: Path
    #: volumes of the workspace, which the engine makes
    volumes: tuple[Mount, ...]


def prepare(engine: Engine, settings: DockerSettings, workspace: str, *, shared: bool = False) -> Trial:
    """Make the directories of a trial. Blocks.

    Args:
        engine: the engine. It has mounted the session's files, because the kernel's container uses them.
        settings: settings of the backend.
        workspace: workspace of the session.
        shared: whether other containers use the workspace too and share its `/tmp`.

    Raises:
        CheckpointFailed: when the directories cannot be made.
        APIError: when the engine refused.
    """
    name = f"trial-{uuid.uuid4().hex}"
    changes = _SHARED_MEMORY / f"{_prefix(settings)}{name}"
    below, above = (disks_of(settings, Limits(), each, shared=shared) for each in (workspace, name))  # of any size
    found = [engine.api.inspect_volume(disk.name)["Mountpoint"] for disk in below]
    volumes = []
    try:
        changes.mkdir(mode=0o700)
        for place, disk in zip(found, above, strict=True):
            upper, work = (changes / f"{kind}{disk.target.replace('/', '-')}" for kind in ("upper", "work"))
            upper.mkdir()
            work.mkdir(mode=0o700)
            upper.chmod(int(disk.mode, 8))
            os.chown(upper, UID, UID)  # the trial sees this directory as the root of the volume
            options = f"nosuid,nodev,lowerdir={place},upperdir={upper},workdir={work}"
            volumes.append(_overlay(settings, disk, options))
    except OSError as error:
        raise CheckpointFailed(f"{changes} cannot be made: {error.strerror}") from error
    return Trial(name, changes, tuple(volumes))


def _overlay(settings: DockerSettings, disk: Disk, options: str) -> Mount:
    return Mount(
        target=disk.target,
        source=disk.name,
        type="volume",
        no_copy=True,
        labels=settings.labels,
        driver_config=DriverConfig("local", {"type": "overlay", "device": "overlay", "o": options}),
    )


async def end(engine: Engine, trial: Trial, owner: str) -> None:
    """Remove the volumes and directories of a trial whose container was removed. If this fails, it is retried later.

    Args:
        engine: engine that has the volumes.
        trial: the trial.
        owner: owner of the calls, as in `Engine.call`.
    """
    removal = engine.insist(clear, engine, trial, name=f"removal of {trial.workspace}", owner=owner)
    await asyncio.wait({removal}, timeout=VOLUMES_WAIT)


def clear(engine: Engine, trial: Trial) -> None:
    """Remove the volumes and directories of a trial whose container was removed. Blocks.

    Raises:
        APIError: when the engine refused.
    """
    for volume in trial.volumes:
        with suppress(NotFound):
            engine.api.remove_volume(volume["Source"], force=True)
    shutil.rmtree(trial.changes, ignore_errors=True)


def clear_all(settings: DockerSettings) -> None:
    """Remove the directories that the trials of earlier gateways have left. Blocks."""
    for directory in _SHARED_MEMORY.glob(f"{_prefix(settings)}*"):
        shutil.rmtree(directory, ignore_errors=True)


def _prefix(settings: DockerSettings) -> str:
    return f"kernel-gateway-{settings.instance}-"
