"""Writes the memory of kernels to disk, encrypted, and continues with it in other containers. All methods block.

A kernel is held while it is written. What gVisor refuses to write leaves it as it was. A directory that is named by a
container and belongs to no recorded image shows a later gateway which kernels it must let go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from sessions.backends.base import Launch
from sessions.backends.docker.checkpoint import packing, sockets
from sessions.backends.docker.checkpoint.images import PARTIAL, Images
from sessions.backends.docker.checkpoint.restore import restart
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed, Runtime, find_runtime
from sessions.backends.docker.checkpoint.sealing import MEMORY, PLAIN, decrypted, seal_all
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import DockerSettings, SleepSettings, volume_names
from sessions.model.checkpoint import SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo

#: file of a copy with the kernel's files
_DISK = "files.img"


class Memories:
    """The memory of kernels on disk."""

    def __init__(self, engine: Engine, disks: Disks, settings: DockerSettings) -> None:
        """Set what is used; nothing is written yet."""
        self._engine = engine
        self._disks = disks
        self._settings = settings
        mine = settings.sleep
        #: what is on disk; None: nothing may be written
        self.images = None if mine is None else Images(mine.directory)

    def _use(self) -> tuple[SleepSettings, Images]:
        if self._settings.sleep is None or self.images is None:
            raise SleepFailed("`sleep_disk` is 0")
        return self._settings.sleep, self.images

    @cached_property
    def _runtime(self) -> Runtime:
        """The runtime, which is looked for once: that costs 0.03 s.

        Raises:
            CheckpointFailed: when this process cannot use it.
        """
        return find_runtime(self._engine.api, self._settings)

    def write(
        self,
        container: str,
        info: ConnectionInfo,
        launch: Launch,
        image: str,
        goes_on: Callable[[], object] | None = None,
    ) -> SleepImage:
        """Write a kernel's memory.

        Args:
            container: of the kernel, to which nothing is connected.
            info: the kernel's connection info.
            launch: what it was started with.
            image: id of the new image.
            goes_on: called when the kernel goes on, while the image is encrypted; its files are in the image. None: it
                is held, and its files are not in the image.

        Raises:
            CheckpointFailed, APIError: when that was not possible; the kernel goes on.
        """
        settings, images = self._use()
        runtime = self._runtime
        source = str(self._engine.api.inspect_container(container)["Image"])
        begun = images.begin(ControlGroup(container).memory() or launch.limits.memory, container)
        try:
            cut = launch.egress is not None and sockets.lead_out(self._engine, container)
            if launch.kernelspec.resets:
                sockets.refresh(info)
            runtime.hold(container)
            runtime.take(container, begun, keep=True)
            if goes_on:
                self._copy_files(launch, begun)
                runtime.let_go(container)
                goes_on()
            size = seal_all(settings, image, begun, (*MEMORY, _DISK) if goes_on else MEMORY)
            begun.rename(images.directory / image)
        except BaseException as error:
            with suppress(CheckpointFailed):  # it was not held, or has ended
                runtime.let_go(container)
            images.remove(begun.name)
            if isinstance(error, OSError):  # else it would count as an error of the connection to the engine
                raise CheckpointFailed(str(error)) from error
            raise
        return SleepImage(image, size, time.time(), source, cut)

    def _copy_files(self, launch: Launch, begun: Path) -> None:
        volume = volume_names(launch.workspace or "")[0]
        packing.flush(Path(self._engine.api.inspect_volume(volume)["Mountpoint"]))
        packing.pack(self._disks.image(volume), begun / _DISK)

    def let_go(self, container: str) -> None:
        """Let a kernel go on that is held.

        Raises:
            CheckpointFailed: when it was not held, or has ended.
        """
        self._runtime.let_go(container)

    def continue_in(self, container: str, image: str) -> None:
        """Start a container with a kernel's memory. Blocks until its processes run.

        Args:
            container: full id of the container, which has not been started.
            image: id of the image.

        Raises:
            CheckpointFailed, CannotWake, BackendUnavailable: when it was not restored; the caller removes it.
        """
        with decrypted(self._settings.sleep, image, MEMORY) as plain:
            restart(self._engine, container, plain)

    def unpack(self, image: str, workspace: str) -> None:
        """Make the files of a new workspace from those in an image.

        Raises:
            CheckpointFailed, CannotWake, APIError: when that is not possible.
        """
        with decrypted(self._settings.sleep, image, [_DISK]) as plain:
            packing.unpack(plain / _DISK, self._disks.image(volume_names(workspace)[0]))

    def forget_others(self, known: set[str]) -> None:
        """Delete all images but these, and let kernels go on that were being written."""
        _, images = self._use()
        for path in images.directory.iterdir():
            if path.name not in known and not path.name.endswith(PLAIN):
                with suppress(CheckpointFailed):  # it has ended, or was not held
                    self.let_go(path.name.removesuffix(PARTIAL))
        images.remove_others(known)
