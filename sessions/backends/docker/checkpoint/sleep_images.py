"""Writes the memory of sessions' kernels to disk, encrypted, and restores it in other containers. All methods block.

A kernel is held while it is written. If gVisor refuses to write it, it runs again. While an image is incomplete, its
directory has the name of the container. If the gateway is killed then, the next one finds by this name which kernels
are still held, and lets them run again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from sessions.backends.base import KernelHandle, Launch, Sharing
from sessions.backends.docker.checkpoint import packing, sockets
from sessions.backends.docker.checkpoint.encryption import MEMORY, PLAIN, decrypted, encrypt_all
from sessions.backends.docker.checkpoint.images import PARTIAL, Images
from sessions.backends.docker.checkpoint.restore import restart
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed, Runtime, find_runtime
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.breaker import unavailable
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import DockerSettings, SleepSettings, volume_names
from sessions.model.checkpoint import SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo

#: names of the files in a copy that contain a workspace's disks, in the order of `volume_names`
_DISKS = ("files.img", "temporary.img")


class SleepImages:
    """The memory of sessions' kernels on disk."""

    def __init__(self, engine: Engine, disks: Disks, settings: DockerSettings) -> None:
        """Keep the arguments. Nothing is written yet."""
        self._engine = engine
        self._disks = disks
        self._settings = settings
        mine = settings.sleep
        #: images of sessions on disk. None means that none may be written.
        self.images = None if mine is None else Images(mine.directory)

    def _use(self) -> tuple[SleepSettings, Images]:
        if self._settings.sleep is None or self.images is None:
            raise SleepFailed("`sleep_disk` is 0")
        return self._settings.sleep, self.images

    @cached_property
    def _runtime(self) -> Runtime:
        """The runtime. It is searched for only once, because that takes 0.03 s.

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
        on_resumed: Callable[[], object] | None = None,
    ) -> SleepImage:
        """Write a kernel's memory, and with `on_resumed` also its files.

        Args:
            container: container of the kernel. Nothing may be connected to the kernel.
            info: the kernel's connection info.
            launch: order that the kernel was started with.
            image: id of the new image.
            on_resumed: called when the kernel runs again, before the image is encrypted. None means that it stays
                held, and its files are not written.

        Raises:
            CheckpointFailed, APIError: when the kernel could not be written. It runs again.
        """
        settings, images = self._use()
        runtime = self._runtime
        source = str(self._engine.api.inspect_container(container)["Image"])
        begun = images.begin(ControlGroup(container).memory() or launch.limits.memory, container)
        try:
            cut = launch.egress is not None and sockets.has_outside_connections(self._engine, container)
            if launch.kernelspec.resets:
                sockets.reset_listeners(info)
            runtime.hold(container)
            runtime.take(container, begun, keep=True)
            if on_resumed:
                self._copy_files(launch, begun)
                runtime.release(container)
                on_resumed()
            size = encrypt_all(settings, image, begun, (*MEMORY, *_disks_of(launch)) if on_resumed else MEMORY)
            begun.rename(images.directory / image)
        except BaseException as error:
            with suppress(CheckpointFailed):  # the container was not held, or has ended
                runtime.release(container)
            images.remove(begun.name)
            if isinstance(error, OSError):  # otherwise it would count as a failed connection to the engine
                raise CheckpointFailed(str(error)) from error
            raise
        return SleepImage(image, size, time.time(), source, cut)

    def write_together(self, shared: Sharing, on_resumed: Callable[[], object]) -> list[SleepImage]:
        """Write the memory of kernels that share a workspace, and the workspace's files, at one moment.

        Args:
            shared: the containers. Nothing may be connected to the kernels whose memory is written.
            on_resumed: called when all containers run again, before the images are encrypted.

        Returns:
            an image of each kernel, and then the image of the files.

        Raises:
            CheckpointFailed, APIError: when something could not be written. All containers run again.
        """
        settings, images = self._use()
        held = [*(handle.id for handle, _ in shared.kernels), *(handle.id for handle in shared.others)]
        begun: list[Path] = []
        written: list[SleepImage] = []
        try:
            sources = [self._prepare(handle, launch) for handle, launch in shared.kernels]
            for number, container in enumerate(held):  # the next gateway finds by these names which ones are held
                size = (ControlGroup(container).memory() or 0) if number < len(sources) else 0
                begun.append(images.begin(size, container))
            begun.append(images.begin(0))
            self._write_held(shared, held, begun)
            on_resumed()
            of_kernels = [(begun[number], source, MEMORY) for number, source in enumerate(sources)]
            for directory, source, names in (*of_kernels, (begun[-1], "", _disks_of(shared.launch))):
                image = uuid.uuid4().hex
                size = encrypt_all(settings, image, directory, names)
                directory.rename(images.directory / image)
                written.append(SleepImage(image, size, time.time(), source))
        except BaseException as error:
            for each in written:
                images.remove(each.id)
            if isinstance(error, OSError):  # otherwise it would count as a failed connection to the engine
                raise CheckpointFailed(str(error)) from error
            raise
        finally:
            for directory in begun:
                images.remove(directory.name)
        return written

    def _write_held(self, shared: Sharing, held: list[str], begun: list[Path]) -> None:
        """Write kernels and files while all containers are held. The directories are in the order of the containers."""
        runtime = self._runtime
        try:
            for container in held:
                runtime.hold(container)
            for number, (handle, _) in enumerate(shared.kernels):
                runtime.take(handle.id, begun[number], keep=True)
            self._copy_files(shared.launch, begun[-1])
        finally:
            for container in held:
                with suppress(CheckpointFailed):  # the container was not held, or has ended
                    runtime.release(container)

    def _prepare(self, handle: KernelHandle, launch: Launch) -> str:
        """Prepare a kernel's sockets for an image, and return the id of its container's image."""
        if launch.kernelspec.resets:
            sockets.reset_listeners(handle.connection_info)
        return str(self._engine.api.inspect_container(handle.id)["Image"])

    def _copy_files(self, launch: Launch, begun: Path) -> None:
        volumes = volume_names(launch.workspace or "")
        for volume, name in zip(volumes, _disks_of(launch), strict=False):
            packing.flush(Path(self._engine.api.inspect_volume(volume)["Mountpoint"]))
            packing.pack(self._disks.image(volume), begun / name)

    def release(self, container: str) -> None:
        """Let a held kernel run again.

        Raises:
            CheckpointFailed: when the kernel was not held, or has ended.
        """
        self._runtime.release(container)

    def continue_in(self, container: str, image: str) -> None:
        """Start a container from an image. Blocks until its processes run.

        Args:
            container: full id of the container, which has not been started.
            image: id of the image.

        Raises:
            CheckpointFailed, CannotWake, BackendUnavailable: when the container was not restored. The caller must
                remove it.
        """
        with decrypted(self._settings.sleep, image, MEMORY) as plain:
            restart(self._engine, container, plain)

    def unpack(self, image: str, launch: Launch) -> None:
        """Make the disks of a launch's workspace, which is new, from the files in an image.

        Raises:
            CheckpointFailed, CannotWake, BackendUnavailable, APIError: when this is not possible.
        """
        names = _disks_of(launch)
        targets = [self._disks.image(volume) for volume in volume_names(launch.workspace or "")]
        with decrypted(self._settings.sleep, image, names) as plain:
            try:
                for name, target in zip(names, targets, strict=False):
                    packing.unpack(plain / name, target)
            except OSError as error:
                raise unavailable(f"the files of a checkpoint cannot be written: {error.strerror}") from error

    def forget_others(self, known: set[str]) -> None:
        """Delete all other images. Kernels that an earlier gateway was writing run again."""
        _, images = self._use()
        for path in images.directory.iterdir():
            if path.name not in known and not path.name.endswith(PLAIN):
                with suppress(CheckpointFailed):  # the container has ended, or was not held
                    self.release(path.name.removesuffix(PARTIAL))
        images.remove_others(known)


def _disks_of(launch: Launch) -> tuple[str, ...]:
    """Return the names of the files with the disks of a launch's workspace; see `profile.disks_of`."""
    return _DISKS if launch.shared else _DISKS[:1]
