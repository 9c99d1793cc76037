"""Kernels are written to disk, and continue from there. Their channels end and begin again; keys and variables stay."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import structlog

from sessions.backends.abilities import Ability
from sessions.backends.base import Backend, KernelHandle, KernelSleep, Launch, Sharing
from sessions.kernels.kernel import Kernel
from sessions.kernels.pool import Pool
from sessions.kernels.start_queue import StartQueue
from sessions.model.checkpoint import (
    CannotWake,
    InUse,
    NoRoom,
    SleepFailed,
    SleepImage,
    Unable,
    Unanswered,
    Unproven,
)
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed, SessionClosed, SessionError, StartFailed
from sessions.model.tasks import shielded, spawn
from sessions.tenants.sleep_disk import SleepDisk

log = structlog.get_logger()

#: attempts to wake a kernel. Measured on a busy machine: gVisor ended one of five restored sandboxes at once.
ATTEMPTS_MAX = 3
#: seconds before the third attempt
PAUSE = 0.5
#: seconds from a trial's start to its answer. Measured: 0.2 s, and 3 s on a busy machine.
TRIAL_TIMEOUT = 15.0
#: seconds in which an idle kernel answers what it was asked, before it is written
ANSWER_TIMEOUT = 2.0


class KernelMemory:
    """Writes kernels' memory to disk, and starts kernels that continue from there."""

    def __init__(self, backend: Backend, starts: StartQueue, pool: Pool, disk: SleepDisk | None = None) -> None:
        """Keep the parameters.

        Args:
            backend: where kernels run.
            starts: starts kernels one after the other, also kernels that wake.
            pool: makes room for a kernel that wakes.
            disk: counts the bytes of images. None means no limit.
        """
        self._sleep: KernelSleep = backend.sleep
        self._starts = starts
        self._pool = pool
        #: the images of all tenants
        self.disk = disk or SleepDisk()

    @property
    def ability(self) -> Ability:
        """Whether kernels can sleep."""
        return self._sleep.ability

    def _require_ability(self) -> None:
        """Raise `Unable` if this gateway cannot write kernels to disk; `/readyz` gives the same reason."""
        if not self.ability.on:
            raise Unable(self.ability.detail)

    def has_room(self, kernel: Kernel, freed: int) -> bool:
        """Return whether there is room on disk for a kernel's memory, if its tenant frees these bytes before."""
        return self.disk.has_room(kernel.launch.tenant, expected_size(kernel), freed)

    async def take(self, kernel: Kernel) -> SleepImage:
        """Write an idle kernel's memory to disk, and prove that it can be woken from there.

        Nothing may use the kernel meanwhile. The call must not be cancelled.

        Returns:
            the image. The kernel is paused: the caller kills it, or lets it continue with `resume`.

        Raises:
            SleepFailed: when the kernel could not be written or woken; it continues.
        """
        self._require_ability()
        with self.disk.room(kernel.launch.tenant, expected_size(kernel)):
            try:
                return await self._write_and_prove(kernel)
            except Unanswered:  # a second attempt would hang, too, while other sessions wait
                raise
            except Unproven as error:
                log.warning("an image of a kernel cannot be woken", kernel=kernel.handle.id[:12], reason=str(error))
            return await self._write_and_prove(kernel)

    async def _write_and_prove(self, kernel: Kernel) -> SleepImage:
        image = await self._write_now(kernel)
        try:
            await self._prove(image, kernel)
        except BaseException as error:
            await self.resume(kernel, image)
            if isinstance(error, TimeoutError):
                raise Unanswered("its image could not be woken: no answer") from error
            if isinstance(error, SessionError | CannotWake):
                raise Unproven(f"its image could not be woken: {error.__cause__ or error}") from error
            raise
        return image

    async def _answered(self, kernel: Kernel) -> None:
        """Wait until a kernel has answered all requests: those in transit would be lost with its channels.

        Raises:
            SleepFailed: when it has ended, or is busy; its channels stay open.
        """
        async with kernel.preloading.paused():
            pass  # an import ahead of need would count as a use
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await kernel.answered()
        except TimeoutError:
            raise InUse(f"it has not answered all requests within {ANSWER_TIMEOUT:g} s") from None
        except ConnectionFailed as error:
            raise SleepFailed("it takes no messages") from error

    async def _write_now(self, kernel: Kernel) -> SleepImage:
        await self._answered(kernel)
        kernel.connection.suspend()
        try:
            image = await self._sleep.take(kernel.handle, kernel.launch)
        except BaseException:
            await self._reopen(kernel)
            raise
        self.disk.keep(image, kernel.launch.tenant)
        return image

    async def _prove(self, image: SleepImage, kernel: Kernel) -> None:
        """Wake a second kernel from an image, and end this kernel when it has answered.

        Raises:
            SessionError, CannotWake, TimeoutError: when the second kernel did not answer.
        """
        async with self._sleep.trial(image, kernel.launch, kernel.handle.connection_info) as handle:
            second = await Kernel.take_over(kernel.launch, handle)
            try:
                async with asyncio.timeout(TRIAL_TIMEOUT):
                    await second.first_answer()
            finally:
                await shielded(spawn(second.kill(SessionClosed()), "end a trial"))

    async def resume(self, kernel: Kernel, image: SleepImage) -> None:
        """Let a kernel continue whose memory was written, and delete its image."""
        await self._sleep.resume(kernel.handle)
        await self._reopen(kernel)
        await self.discard(image)

    async def _reopen(self, kernel: Kernel) -> None:
        """Open a kernel's channels again, and wait for its first answer: earlier output of cells would be lost."""
        if kernel.alive:
            try:
                kernel.connection.open()
                await kernel.first_answer()
            except (ConnectionFailed, StartFailed):  # the gateway has no sockets left, or the kernel does not answer
                await shielded(spawn(kernel.kill(ConnectionFailed()), "kill unreachable kernel"))

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> Kernel:
        """Wake a kernel. Its image stays.

        Args:
            image: memory of the kernel.
            launch: properties that the kernel was started with.
            info: connection info of the kernel.

        Returns:
            the kernel, which has answered.

        Raises:
            CannotWake: when no later attempt would succeed, either.
            StartFailed: when the kernel did not answer.
            QuotaExceeded: when the limits of all kernels together would exceed the memory for kernels.
            BackendUnavailable: when the engine does not answer.
        """
        wake = partial(self._wake, image, info, "the session sleeps, and its kernel")
        return await self._pool.with_room(lambda: self._starts.start_kernel(launch, wake))

    async def _wake(
        self, image: SleepImage, info: ConnectionInfo, what: str, launch: Launch, *, rename: bool = False
    ) -> Kernel:
        return await self._in_attempts(
            what, lambda: self._continued(image, launch, self._sleep.wake(image, launch, info), rename=rename)
        )

    async def _in_attempts(self, what: str, attempt: Callable[[], Awaitable[Kernel]]) -> Kernel:
        for number in range(ATTEMPTS_MAX):
            try:
                return await attempt()
            except StartFailed as error:
                log.warning("a kernel did not wake", attempt=number + 1, reason=str(error.__cause__ or error))
                await asyncio.sleep(PAUSE * number)
        raise StartFailed(f"{what} did not answer in {ATTEMPTS_MAX} attempts")

    async def _continued(
        self, image: SleepImage, launch: Launch, started: Awaitable[KernelHandle], *, rename: bool = False
    ) -> Kernel:
        kernel = await Kernel.take_over(launch, await started, cut=image.cut)
        try:
            await kernel.first_answer()
            if rename:  # a branch begins with the memory of another session
                await kernel.rename()
        except BaseException:
            await shielded(spawn(kernel.kill(SessionClosed()), "kill a kernel that did not wake"))
            raise
        return kernel

    # -- copies ---------------------------------------------------------------------------------------------

    async def copy(self, kernel: Kernel) -> SleepImage:
        """Write an idle kernel's memory and files to disk. The kernel is paused meanwhile, and then continues.

        Nothing may use the kernel meanwhile. The call must not be cancelled. The caller has reserved room in `disk`.

        Raises:
            SleepFailed: when the kernel could not be written; it continues.
        """
        self._require_ability()
        await self._answered(kernel)
        kernel.connection.suspend()
        continued = asyncio.Event()
        reopening = spawn(self._reopen_after(continued, kernel), "reopen a copied kernel")
        try:
            image = await self._sleep.copy(kernel.handle, kernel.launch, continued.set)
            self.disk.keep(image, kernel.launch.tenant)
        finally:
            continued.set()
            await reopening
        return image

    async def _reopen_after(self, continued: asyncio.Event, kernel: Kernel) -> None:
        await continued.wait()
        await self._reopen(kernel)

    async def restore(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> Kernel:
        """Start a kernel that continues from a checkpoint, on its own copy of the files. The checkpoint's image stays.

        Args:
            image: image of the checkpoint.
            launch: properties that the checkpoint's kernel was started with. The new kernel gets another workspace.
            info: connection info of the checkpoint's kernel.

        Raises:
            CannotWake: when no later attempt would succeed, either.
            SessionError: as in `wake`.
        """
        restore = partial(self._restore, image, info)
        return await self._pool.with_room(lambda: self._starts.start_kernel(launch, restore))

    async def _restore(self, image: SleepImage, info: ConnectionInfo, launch: Launch) -> Kernel:
        return await self._in_attempts("the checkpoint's kernel", lambda: self._restored_once(image, info, launch))

    async def _restored_once(self, image: SleepImage, info: ConnectionInfo, launch: Launch) -> Kernel:
        workspace = uuid.uuid4().hex  # new in each attempt: a failed kernel may have changed the files
        named = replace(launch, workspace=workspace)
        try:
            return await self._continued(image, named, self._sleep.restore(image, named, info), rename=True)
        except BaseException:
            await shielded(spawn(self._pool.delete_workspace(workspace), "delete workspace"))
            raise

    # -- copies of kernels that share their files -----------------------------------------------------------

    async def copy_together(
        self, launch: Launch, kernels: Sequence[Kernel], others: Sequence[KernelHandle]
    ) -> list[SleepImage]:
        """Write the memory of idle kernels that share a workspace, and its files, at one moment; all then continue.

        Nothing may use the workspace meanwhile. The call must not be cancelled.

        Args:
            launch: order to start one of the workspace's containers.
            kernels: kernels whose memory is written.
            others: all other containers on the workspace.

        Returns:
            an image of each kernel, and then the image of the files.

        Raises:
            SleepFailed: when something could not be written; nothing was written then.
        """
        self._require_ability()
        with self.disk.room(launch.tenant, sum(expected_size(kernel) for kernel in kernels)):
            continued = asyncio.Event()
            for kernel in kernels:
                await self._answered(kernel)
            for kernel in kernels:
                kernel.connection.suspend()
            reopening = [spawn(self._reopen_after(continued, kernel), "reopen a copied kernel") for kernel in kernels]
            try:
                shared = Sharing(launch, [(kernel.handle, kernel.launch) for kernel in kernels], others)
                images = await self._sleep.copy_together(shared, continued.set)
                for image in images:
                    self.disk.keep(image, launch.tenant)
            finally:
                continued.set()
                await asyncio.gather(*reopening)
        if not self.disk.has_room(launch.tenant, 0):  # the size of the files was not known before
            for image in images:
                await self.discard(image)
            raise NoRoom("the files take more than there is room for")
        return images

    async def unpack(self, files: SleepImage, launch: Launch) -> None:
        """Make the workspace of a launch, which must be new, from the files of `copy_together`.

        Raises:
            CannotWake: when no later attempt would succeed, either.
            SessionError: when the files could not be written; the caller deletes the workspace.
        """
        await self._sleep.unpack(files, launch)

    async def continue_as(self, image: SleepImage, info: ConnectionInfo, launch: Launch) -> Kernel:
        """Start a kernel of another session, which continues from an image of `copy_together`. The image stays.

        Args:
            image: the image.
            info: connection info of the kernel that was written.
            launch: order to start the new kernel, on a workspace of `unpack`.

        Raises:
            CannotWake: when no later attempt would succeed, either.
            SessionError: as in `wake`.
        """
        wake = partial(self._wake, image, info, "the copied kernel", rename=True)
        return await self._pool.with_room(lambda: self._starts.start_kernel(launch, wake))

    async def discard(self, image: SleepImage) -> None:
        """Delete an image from disk, to the end also when the caller is cancelled: its client may leave at any time."""
        await shielded(spawn(self._discard(image), "removal of an image"))

    async def _discard(self, image: SleepImage) -> None:
        await self._sleep.discard(image)
        self.disk.forget(image)


def expected_size(kernel: Kernel) -> int:
    """Return the bytes that an image of a kernel is expected to take."""
    return kernel.handle.memory() or kernel.launch.limits.memory
