"""Kernels fall asleep and wake: their channels end and begin again, their keys and variables stay."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import structlog

from sessions.backends.abilities import Ability
from sessions.backends.base import Backend, KernelHandle, KernelSleep, Launch
from sessions.kernels.kernel import Kernel
from sessions.kernels.pool import Pool
from sessions.kernels.start_queue import StartQueue
from sessions.model.checkpoint import CannotWake, SleepImage, Unable, Unanswered, Unproven
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed, SessionClosed, SessionError, StartFailed
from sessions.model.tasks import shielded, spawn
from sessions.tenants.sleep_disk import SleepDisk

log = structlog.get_logger()

#: attempts to wake a kernel: on a busy machine gVisor was measured to end one of five restored sandboxes at once
ATTEMPTS_MAX = 3
#: seconds before the third attempt
PAUSE = 0.5
#: seconds from a trial's start to its answer; measured: 0.2 s, on a busy machine 3
TRIAL_TIMEOUT = 15.0


class Sleeping:
    """Lets kernels fall asleep, and wakes them."""

    def __init__(self, backend: Backend, starts: StartQueue, pool: Pool, disk: SleepDisk | None = None) -> None:
        """Set what is used.

        Args:
            backend: where kernels run.
            starts: starts kernels in turn, sleeping ones included.
            pool: gives room for a kernel that wakes.
            disk: counts what is written; None: without a limit.
        """
        self._sleep: KernelSleep = backend.sleep
        self._starts = starts
        self._pool = pool
        #: what there is on disk, of all tenants
        self.disk = disk or SleepDisk()

    @property
    def ability(self) -> Ability:
        """Whether kernels can sleep."""
        return self._sleep.ability

    def _require_ability(self) -> None:
        """Refuse where `/readyz` says that kernels cannot be written."""
        if not self.ability.on:
            raise Unable(self.ability.detail)

    async def take(self, kernel: Kernel) -> SleepImage:
        """Write an idle kernel's memory to disk, and prove that it can be woken from there.

        Nothing may use the kernel; the caller does not cancel this.

        Returns:
            its image. The kernel is held: the caller kills it, or lets it go on with `resume`.

        Raises:
            SleepFailed: when that was not possible; the kernel goes on.
        """
        self._require_ability()
        with self.disk.room(kernel.launch.tenant, expected_size(kernel)):
            try:
                return await self._proven(kernel)
            except Unanswered:  # it would hang once more, while other sessions wait
                raise
            except Unproven as error:
                log.warning("an image of a kernel cannot be woken", kernel=kernel.handle.id[:12], reason=str(error))
            return await self._proven(kernel)

    async def _proven(self, kernel: Kernel) -> SleepImage:
        image = await self._written(kernel)
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

    async def _written(self, kernel: Kernel) -> SleepImage:
        kernel.connection.suspend()
        try:
            image = await self._sleep.take(kernel.handle, kernel.launch)
        except BaseException:
            await self._reopen(kernel)
            raise
        self.disk.keep(image, kernel.launch.tenant)
        return image

    async def _prove(self, image: SleepImage, kernel: Kernel) -> None:
        """Wake a second kernel from an image, and end it when it has answered.

        Raises:
            SessionError, CannotWake, TimeoutError: when it did not answer.
        """
        async with self._sleep.trial(image, kernel.launch, kernel.handle.connection_info) as handle:
            second = await Kernel.take_over(kernel.launch, handle)
            try:
                async with asyncio.timeout(TRIAL_TIMEOUT):
                    await second.first_answer()
            finally:
                await shielded(spawn(second.kill(SessionClosed()), "end a trial"))

    async def resume(self, kernel: Kernel, image: SleepImage) -> None:
        """Let a kernel go on whose memory was written, and delete its image."""
        await self._sleep.resume(kernel.handle)
        await self._reopen(kernel)
        await self.discard(image)

    async def _reopen(self, kernel: Kernel) -> None:
        """Open a kernel's channels again, and wait for its answer: the output of a cell before that would be lost."""
        if kernel.alive:
            try:
                kernel.connection.open()
                await kernel.first_answer()
            except (ConnectionFailed, StartFailed):  # there are no sockets left, or it does not go on
                await shielded(spawn(kernel.kill(ConnectionFailed()), "kill unreachable kernel"))

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> Kernel:
        """Continue with a kernel. Its image stays.

        Args:
            image: its memory.
            launch: what it was started with.
            info: its connection info.

        Returns:
            the kernel, which has answered.

        Raises:
            CannotWake: when no later attempt would succeed, either.
            StartFailed: when it did not answer.
            QuotaExceeded: when all kernels together would be promised too much memory.
            BackendUnavailable: when the engine does not answer.
        """
        wake = partial(self._wake, image, info)
        return await self._pool.with_room(lambda: self._starts.start_kernel(launch, wake))

    async def _wake(self, image: SleepImage, info: ConnectionInfo, launch: Launch) -> Kernel:
        what = "the session sleeps, and its kernel"
        return await self._in_attempts(
            what, lambda: self._continued(image, launch, self._sleep.wake(image, launch, info))
        )

    async def _in_attempts(self, what: str, attempt: Callable[[], Awaitable[Kernel]]) -> Kernel:
        for number in range(ATTEMPTS_MAX):
            try:
                return await attempt()
            except StartFailed as error:
                log.warning("a kernel did not wake", attempt=number + 1, reason=str(error.__cause__ or error))
                await asyncio.sleep(PAUSE * number)
        raise StartFailed(f"{what} did not answer in {ATTEMPTS_MAX} attempts")

    async def _continued(self, image: SleepImage, launch: Launch, started: Awaitable[KernelHandle]) -> Kernel:
        kernel = await Kernel.take_over(launch, await started)
        kernel.cut = image.cut
        try:
            await kernel.first_answer()
        except BaseException:
            await shielded(spawn(kernel.kill(SessionClosed()), "kill a kernel that did not wake"))
            raise
        return kernel

    # -- copies ---------------------------------------------------------------------------------------------

    async def copy(self, kernel: Kernel) -> SleepImage:
        """Write an idle kernel's memory and files to disk. It stands still for that time, and goes on.

        Nothing may use the kernel; the caller does not cancel this, and has asked `disk` for room.

        Raises:
            SleepFailed: when that was not possible; the kernel goes on.
        """
        self._require_ability()
        async with kernel.preloading.paused():
            pass  # an import ahead of need would count as a use
        kernel.connection.suspend()
        going_on = asyncio.Event()
        reopening = spawn(self._reopen_after(going_on, kernel), "reopen a copied kernel")
        try:
            image = await self._sleep.copy(kernel.handle, kernel.launch, going_on.set)
            self.disk.keep(image, kernel.launch.tenant)
        finally:
            going_on.set()
            await reopening
        return image

    async def _reopen_after(self, going_on: asyncio.Event, kernel: Kernel) -> None:
        await going_on.wait()
        await self._reopen(kernel)

    async def restore(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> Kernel:
        """Continue from a copy, on files of its own. The copy stays.

        Args:
            image: the copy.
            launch: what its kernel was started with. The new one has another workspace.
            info: connection info of its kernel.

        Raises:
            CannotWake: when no later attempt would succeed, either.
            SessionError: as in `wake`.
        """
        restore = partial(self._restore, image, info)
        return await self._pool.with_room(lambda: self._starts.start_kernel(launch, restore))

    async def _restore(self, image: SleepImage, info: ConnectionInfo, launch: Launch) -> Kernel:
        return await self._in_attempts("the checkpoint's kernel", lambda: self._restored_once(image, info, launch))

    async def _restored_once(self, image: SleepImage, info: ConnectionInfo, launch: Launch) -> Kernel:
        workspace = uuid.uuid4().hex  # in each attempt, because the one before may have changed its files
        named = replace(launch, workspace=workspace)
        try:
            return await self._continued(image, named, self._sleep.restore(image, named, info))
        except BaseException:
            await shielded(spawn(self._pool.delete_workspace(workspace), "delete workspace"))
            raise

    async def discard(self, image: SleepImage) -> None:
        """Delete an image."""
        await self._sleep.discard(image)
        self.disk.forget(image)


def expected_size(kernel: Kernel) -> int:
    """Return the bytes that an image of a kernel is expected to take."""
    return kernel.handle.memory() or kernel.launch.limits.memory
