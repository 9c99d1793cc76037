"""Sleep: a kernel's sandbox is written to disk, encrypted, and continues later in another container.

The sandbox is held while it is written and until it is killed, so that its files do not change after its memory was
written. What gVisor refuses to write (a connection to another host, an open file without a name) leaves the kernel as
it was. A directory that is named by a container and belongs to no recorded image shows a later gateway which kernels it
must let go on.

A copy is the same with the kernel's files, and the kernel goes on. What continues from a copy has files of its own.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import structlog
from docker.errors import APIError

from sessions.asleep import InUse, NoRoom, SleepFailed, SleepImage
from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle, Launch
from sessions.backends.docker import disk_images, listeners, trials
from sessions.backends.docker.breaker import fails, short_cause
from sessions.backends.docker.checkpoints import CheckpointFailed, restart
from sessions.backends.docker.checkpoints.images import PARTIAL, Images
from sessions.backends.docker.checkpoints.runtime import Runtime, TooLarge, find_runtime
from sessions.backends.docker.engine import SLEEP, Engine
from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.profile import DockerSettings, volume_names
from sessions.backends.docker.sealed_images import MEMORY, PLAIN, decrypted, seal_all
from sessions.backends.docker.sleep_settings import SleepSettings
from sessions.backends.docker.starter import Starter
from sessions.connection_info import ConnectionInfo
from sessions.errors import BackendUnavailable, StartFailed

log = structlog.get_logger()
T = TypeVar("T")

#: file of a copy with the kernel's files
_DISK = "files.img"


def sleep_ability(settings: DockerSettings, proven: Ability) -> Ability:
    """Return whether kernels can sleep.

    Args:
        settings: of the backend.
        proven: whether this process can write and restore sandboxes here, as a proof has shown.
    """
    if settings.sleep is None:
        return Ability(on=False, detail="`sleep_disk` is 0")
    if settings.files == "memory":
        return Ability(on=False, detail="`files` is `memory`: they would not outlive the kernel")
    return Ability(on=True, detail="idle kernels can sleep on disk") if proven.on else proven


class DockerSleep:
    """Writes kernels to disk and continues with them."""

    def __init__(self, engine: Engine, settings: DockerSettings, starter: Starter) -> None:
        """Set what is used; nothing is written yet."""
        self._engine = engine
        self._settings = settings
        self._starter = starter
        mine = settings.sleep
        self._images = None if mine is None else Images(mine.directory)

    @property
    def ability(self) -> Ability:
        """Whether kernels can sleep."""
        return sleep_ability(self._settings, self._starter.checkpoints.proven)

    def _use(self) -> tuple[SleepSettings, Images]:
        if self._settings.sleep is None or self._images is None:
            raise SleepFailed("`sleep_disk` is 0")
        return self._settings.sleep, self._images

    @cached_property
    def _runtime(self) -> Runtime:
        """The runtime, which is looked for once: that costs 0.03 s.

        Raises:
            CheckpointFailed: when this process cannot use it.
        """
        return find_runtime(self._engine.api, self._settings)

    # -- falling asleep -------------------------------------------------------------------------------------

    async def take(self, handle: KernelHandle, launch: Launch) -> SleepImage:
        """Write a kernel's memory to disk; see `KernelSleep`."""
        if not isinstance(handle, DockerHandle) or handle.in_use:
            raise InUse("its sandbox is in use")
        handle.held = True
        try:
            return await self._call(handle.tenant, partial(self._written, handle, launch, handle.id, None))
        except BaseException:
            handle.held = False
            raise

    async def copy(self, handle: KernelHandle, launch: Launch, goes_on: Callable[[], None]) -> SleepImage:
        """Write a kernel's memory and files to disk, and let it go on; see `KernelSleep`."""
        if launch.shared:
            raise SleepFailed("other containers use its files, too")
        if not isinstance(handle, DockerHandle) or handle.tools_run:
            raise InUse("a tool runs in its sandbox")
        handle.held = True
        try:
            say = partial(asyncio.get_running_loop().call_soon_threadsafe, goes_on)
            return await self._call(handle.tenant, partial(self._written, handle, launch, uuid.uuid4().hex, say))
        finally:
            handle.held = False

    async def _call(self, tenant: str, work: Callable[[], T]) -> T:
        try:
            return await self._engine.call(work, lane=SLEEP, owner=tenant)
        except TooLarge as error:
            raise NoRoom(str(error)) from error
        except CheckpointFailed as error:
            raise SleepFailed(str(error)) from error
        except APIError as error:
            raise SleepFailed(f"the engine refused: {short_cause(error)}") from error
        except BackendUnavailable as error:
            raise SleepFailed(error.message) from error

    def _written(
        self, handle: DockerHandle, launch: Launch, image: str, goes_on: Callable[[], object] | None
    ) -> SleepImage:
        """Write an image. If `goes_on`, the kernel's files are in it, and it goes on while the image is encrypted."""
        settings, images = self._use()
        runtime = self._runtime
        source = str(self._engine.api.inspect_container(handle.id)["Image"])
        begun = images.begin(handle.memory() or launch.limits.memory, handle.id)
        try:
            if launch.kernelspec.resets:
                listeners.refresh(handle.connection_info)
            runtime.hold(handle.id)
            runtime.take(handle.id, begun, keep=True)
            if goes_on:
                self._copy_files(launch, begun)
                runtime.let_go(handle.id)
                goes_on()
            size = seal_all(settings, image, begun, (*MEMORY, _DISK) if goes_on else MEMORY)
            begun.rename(images.directory / image)
        except BaseException as error:
            with suppress(CheckpointFailed):  # it was not held, or has ended
                runtime.let_go(handle.id)
            images.remove(begun.name)
            if isinstance(error, OSError):  # else it would count as an error of the connection to the engine
                raise CheckpointFailed(str(error)) from error
            raise
        return SleepImage(image, size, time.time(), source)

    def _copy_files(self, launch: Launch, begun: Path) -> None:
        volume = volume_names(launch.workspace or "")[0]
        disk_images.flush(Path(self._engine.api.inspect_volume(volume)["Mountpoint"]))
        disk_images.pack(self._starter.disks.image(volume), begun / _DISK)

    async def resume(self, handle: KernelHandle) -> None:
        """Let a kernel go on whose memory was written."""
        if isinstance(handle, DockerHandle):
            with suppress(CheckpointFailed, APIError, BackendUnavailable):  # it has ended
                await self._engine.call(self._resumed, handle.id, lane=SLEEP, owner=handle.tenant)
            handle.held = False

    def _resumed(self, container: str) -> None:
        self._runtime.let_go(container)

    # -- waking ---------------------------------------------------------------------------------------------

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> DockerHandle:
        """Start a container that continues with a kernel's memory; see `KernelSleep`."""
        restored = partial(self._restored, image)
        return await self._starter.start_with(restored, replace(launch, image=image.source), info)

    @asynccontextmanager
    async def trial(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> AsyncIterator[DockerHandle]:
        """Continue with a kernel's memory for a moment; see `KernelSleep`."""
        offline = replace(launch, image=image.source, egress=None)
        call = partial(self._engine.call, lane=SLEEP, owner=launch.tenant)
        try:
            trial = await call(trials.prepare, self._engine, self._settings, launch.workspace or "")
        except (CheckpointFailed, APIError) as error:
            raise StartFailed("no trial of a sleeping kernel could be prepared") from error
        try:
            launched = replace(offline, workspace=trial.workspace)
            restored = partial(self._restored, image, trial=True)
            handle = await self._starter.start_with(restored, launched, info, trial)
            try:
                yield handle
            finally:
                await asyncio.shield(handle.kill())
        finally:
            await trials.end(self._engine, trial, launch.tenant)

    def _restored(self, image: SleepImage, container: str, *, trial: bool = False) -> None:
        with decrypted(self._settings.sleep, image.id, MEMORY) as plain:
            restart(self._engine, container, plain, trial=trial)

    async def restore(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> DockerHandle:
        """Start a container that continues with a copy's memory and files; see `KernelSleep`."""
        try:
            await self._engine.call(self._unpacked, image, launch, lane=SLEEP, owner=launch.tenant)
        except (CheckpointFailed, APIError) as error:
            raise StartFailed("the files of a checkpoint could not be restored") from error
        return await self.wake(image, launch, info)

    def _unpacked(self, image: SleepImage, launch: Launch) -> None:
        with decrypted(self._settings.sleep, image.id, [_DISK]) as plain:
            disk_images.unpack(plain / _DISK, self._starter.disks.image(volume_names(launch.workspace or "")[0]))

    # -- the end --------------------------------------------------------------------------------------------

    async def discard(self, image: SleepImage) -> None:
        """Delete an image."""
        if self._images is not None:
            await self._engine.call(self._images.remove, image.id, lane=SLEEP)

    async def adopt(self, images: Collection[SleepImage]) -> None:
        """Delete what earlier gateways have left, except these images; let kernels go on that were being written."""
        if self._images is not None and self._images.directory.is_dir():
            try:
                await self._engine.call(trials.clear_all, self._settings, lane=SLEEP)
                await self._engine.call(self._adopted, self._images, {image.id for image in images}, lane=SLEEP)
            except APIError as error:
                raise fails("let kernels go on", error) from error

    def _adopted(self, images: Images, known: set[str]) -> None:
        for path in images.directory.iterdir():
            if path.name not in known and not path.name.endswith(PLAIN):
                with suppress(CheckpointFailed):  # it has ended, or was not held
                    self._resumed(path.name.removesuffix(PARTIAL))
        images.remove_others(known)
