"""Sleep: a kernel's sandbox is written to disk, encrypted, and continues later in another container.

The sandbox is held while it is written and until it is killed, so that its files do not change after its memory was
written. If gVisor refuses to write it, the kernel runs again.

A copy is an image that also contains the kernel's files. After it was written, the kernel runs again. A kernel that
continues from a copy gets files of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog
from docker.errors import APIError

from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle, Launch, Sharing
from sessions.backends.docker.checkpoint import trials
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed, TooLarge
from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.engine.breaker import engine_failed, short_cause
from sessions.backends.docker.engine.engine import SLEEP, Engine
from sessions.backends.docker.profile import DockerSettings
from sessions.backends.docker.starter import Starter
from sessions.model.checkpoint import InUse, NoRoom, SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import BackendUnavailable, StartFailed
from sessions.model.stopwatch import Stage, lap

log = structlog.get_logger()
T = TypeVar("T")

#: seconds in which a tool may end whose client has its answer already, and the program that runs tools
TOOL_ENDS = 2.0
#: what sleep does, and its price
SLEEPS = "idle sessions can sleep on disk, where each takes 140 MB and the size of its variables"


def sleep_ability(settings: DockerSettings, proven: Ability) -> Ability:
    """Return whether kernels can sleep.

    Args:
        settings: settings of the backend.
        proven: whether a proof has shown that this process can write and restore sandboxes.
    """
    if settings.sleep is None:
        return Ability(on=False, detail="`sleep_disk` is 0")
    if settings.files == "memory":
        return Ability(on=False, detail="`files` is `memory`: they would not outlive the kernel")
    return Ability(on=True, detail=SLEEPS) if proven.on else proven


class DockerSleep:
    """Writes kernels to disk and continues them."""

    def __init__(self, engine: Engine, settings: DockerSettings, starter: Starter) -> None:
        """Keep the arguments. Nothing is written yet."""
        self._engine = engine
        self._settings = settings
        self._starter = starter
        self._sleep_images = starter.golden.sleep_images

    @property
    def ability(self) -> Ability:
        """Whether kernels can sleep."""
        return sleep_ability(self._settings, self._starter.golden.proven)

    # -- falling asleep -------------------------------------------------------------------------------------

    async def take(self, handle: KernelHandle, launch: Launch) -> SleepImage:
        """Write a kernel's memory to disk, as in `KernelSleep`."""
        if (
            not isinstance(handle, DockerHandle)
            or handle.in_use
            or not await handle.tools_ended(TOOL_ENDS)
            or handle.in_use  # again
        ):
            raise InUse("its sandbox is in use")
        with handle.held(stays=True):
            write = partial(self._sleep_images.write, handle.id, handle.connection_info, launch, handle.id)
            return await self._call(handle.tenant, write)

    async def copy(self, handle: KernelHandle, launch: Launch, on_resumed: Callable[[], None]) -> SleepImage:
        """Write a kernel's memory and files to disk, as in `KernelSleep`."""
        if not isinstance(handle, DockerHandle) or not await handle.tools_ended(TOOL_ENDS):
            raise InUse("a tool runs in its sandbox")
        with handle.held(stays=False):
            say = partial(asyncio.get_running_loop().call_soon_threadsafe, on_resumed)
            image = uuid.uuid4().hex
            write = partial(self._sleep_images.write, handle.id, handle.connection_info, launch, image, say)
            return await self._call(handle.tenant, write)

    async def copy_together(self, shared: Sharing, on_resumed: Callable[[], None]) -> list[SleepImage]:
        """Write kernels that share a workspace, and its files, as in `KernelSleep`."""
        kernels = [handle for handle, _ in shared.kernels if isinstance(handle, DockerHandle)]
        if not all(await asyncio.gather(*(handle.tools_ended(TOOL_ENDS) for handle in kernels))):
            raise InUse("a tool runs in the container of one of its kernels")
        with ExitStack() as stack:
            for handle in (*(kernel for kernel, _ in shared.kernels), *shared.others):
                if isinstance(handle, DockerHandle):
                    stack.enter_context(handle.held(stays=False))
            say = partial(asyncio.get_running_loop().call_soon_threadsafe, on_resumed)
            return await self._call(shared.launch.tenant, partial(self._sleep_images.write_together, shared, say))

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

    async def resume(self, handle: KernelHandle) -> None:
        """Let a held kernel run again."""
        if isinstance(handle, DockerHandle):
            with suppress(CheckpointFailed, APIError, BackendUnavailable):  # it has ended
                await self._engine.call(self._sleep_images.release, handle.id, lane=SLEEP, owner=handle.tenant)
            handle.note_released()

    # -- waking ---------------------------------------------------------------------------------------------

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> DockerHandle:
        """Start a container that continues from an image, as in `KernelSleep`."""
        restored = partial(self._sleep_images.continue_in, image=image.id)
        return await self._starter.start_with(restored, replace(launch, image=image.source), info)

    @asynccontextmanager
    async def trial(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> AsyncIterator[DockerHandle]:
        """Start a second kernel from an image inside the `with` block, as in `KernelSleep`."""
        offline = replace(launch, image=image.source, egress=None)
        call = partial(self._engine.call, lane=SLEEP, owner=launch.tenant)
        try:
            prepare = partial(trials.prepare, shared=launch.shared)
            trial = await call(prepare, self._engine, self._settings, launch.workspace or "")
        except (CheckpointFailed, APIError) as error:
            raise StartFailed("no trial of a sleeping kernel could be prepared") from error
        try:
            launched = replace(offline, workspace=trial.workspace)
            restored = partial(self._sleep_images.continue_in, image=image.id)
            handle = await self._starter.start_with(restored, launched, info, trial)
            try:
                yield handle
            finally:
                await asyncio.shield(handle.kill())
        finally:
            await trials.end(self._engine, trial, launch.tenant)

    async def restore(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> DockerHandle:
        """Start a container that continues from a copy, as in `KernelSleep`."""
        await self.unpack(image, launch)
        return await self.wake(image, launch, info)

    async def unpack(self, files: SleepImage, launch: Launch) -> None:
        """Make a workspace from the files in an image, as in `KernelSleep`."""
        try:
            unpack = partial(self._sleep_images.unpack, files.id, launch)
            await self._engine.call(unpack, lane=SLEEP, owner=launch.tenant)
        except (CheckpointFailed, APIError) as error:
            raise StartFailed("the files of a checkpoint could not be restored") from error
        lap(Stage.FILES)

    # -- the end --------------------------------------------------------------------------------------------

    async def discard(self, image: SleepImage) -> None:
        """Delete an image."""
        if (images := self._sleep_images.images) is not None:
            await self._engine.call(images.remove, image.id, lane=SLEEP)

    async def adopt(self, images: Collection[SleepImage]) -> None:
        """Delete all other images of earlier gateways. Kernels that they were writing run again."""
        mine = self._sleep_images.images
        if mine is not None and mine.directory.is_dir():
            known = {image.id for image in images}
            try:
                await self._engine.call(trials.clear_all, self._settings, lane=SLEEP)
                await self._engine.call(self._sleep_images.forget_others, known, lane=SLEEP)
            except APIError as error:
                raise engine_failed("let kernels go on", error) from error
