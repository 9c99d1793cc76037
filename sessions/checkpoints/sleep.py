"""The sleep of one session's kernel: what is on disk of it, and attempts to wake it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from sessions.backends.base import Launch
from sessions.checkpoints.writing import Sleeping
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import SessionClosed, StartFailed
from sessions.model.stopwatch import Operation, Stage, measured
from sessions.model.tasks import log_failure
from sessions.model.values import SessionKey
from sessions.store.session_records import ContainerRecord

log = structlog.get_logger()

#: failed requests for a kernel that sleeps after which its memory counts as lost
FAILURES_MAX = 3


class MemoryObserver(Protocol):
    """Gets what becomes of the memory of kernels that is on disk."""

    def checkpoint(self, seconds: float, *, taken: bool) -> None:
        """A checkpoint was taken or not, in that time, in which the session's clients had to wait."""

    def woken(self, seconds: float, *, succeeded: bool) -> None:
        """A session that sleeps has its kernel again, or not yet, after that time."""

    def stages(self, operation: Operation, seconds: Mapping[Stage, float]) -> None:
        """A session was woken, rolled back or branched, with these seconds of each stage."""

    def rolled_back(self, *, crash: bool) -> None:
        """A session has returned to a checkpoint: by itself after a crash, or because its client has asked for it."""


class Sleeper:
    """Keeps the image of a session's kernel."""

    def __init__(
        self,
        key: SessionKey,
        sleeping: Sleeping,
        observer: MemoryObserver,
        clock: Callable[[], float],
        left: ContainerRecord | None,
    ) -> None:
        """Begin.

        Args:
            key: of the session.
            sleeping: writes kernels to disk, and wakes them.
            observer: gets what becomes of them.
            clock: function that returns seconds.
            left: the kernel that an earlier gateway has left, perhaps asleep.
        """
        self._key = key
        self._sleeping = sleeping
        self._observer = observer
        self._clock = clock
        #: its kernel as it was recorded; None: it does not sleep
        self._slept = left if left is not None and left.asleep is not None else None
        if self.image is not None:
            sleeping.disk.keep(self.image, key.tenant)
        self._failures = 0
        #: why the memory of the kernel is lost; empty: it is not. The image stays until there is a fresh kernel, and so
        #: do the session's files
        self.loss = ""
        #: why the last attempt to fall asleep has failed, for the session's client; empty: it has not
        self.problem = ""

    @property
    def image(self) -> SleepImage | None:
        """The kernel's memory on disk; None: it does not sleep."""
        return None if self._slept is None else self._slept.asleep

    async def take(self, kernel: Kernel) -> SleepImage:
        """Write a kernel's memory to disk; see `Sleeping.take`.

        Raises:
            SleepFailed: when that was not possible; the kernel goes on.
        """
        try:
            image = await self._sleeping.take(kernel)
        except SleepFailed as error:
            self.problem = error.shown
            raise
        self.problem = ""
        if not kernel.alive:
            await self._discard(image)
            raise SleepFailed("it has ended")
        return image

    async def give_back(self, kernel: Kernel, image: SleepImage) -> None:
        """Let a kernel go on after all."""
        await self._sleeping.resume(kernel, image)

    async def begin(self, kernel: Kernel, recorded: ContainerRecord) -> None:
        """End a kernel whose image was recorded."""
        self._slept = recorded
        await kernel.kill(SessionClosed())

    async def wake(self, launch: Launch) -> Kernel | None:
        """Continue with the kernel; the image stays until `forget`.

        Returns:
            the kernel; None: it does not sleep, or its memory is lost (`loss`).

        Raises:
            SessionError: when it could not be woken now.
        """
        if self._slept is None or self._slept.asleep is None or self.loss:
            return None
        try:
            kernel = await self._attempt(self._slept.asleep, launch, self._slept.info)
        except CannotWake as error:
            self.loss = f"the session slept, and its kernel could not be woken: {error}"
            log.warning("a kernel did not wake, and is lost", session=str(self._key), reason=str(error))
            return None
        log.info("session woken", session=str(self._key))
        return kernel

    async def _attempt(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> Kernel:
        begun, kernel = self._clock(), None
        try:
            with measured(Operation.WAKE, self._observer.stages):
                kernel = await self._sleeping.wake(image, launch, info)
        except StartFailed as error:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                raise CannotWake(error.message) from error
            raise
        finally:
            self._observer.woken(self._clock() - begun, succeeded=kernel is not None)
        return kernel

    async def forget(self) -> None:
        """Delete the image, if there is one."""
        image, self._slept = self.image, None
        self._failures, self.loss, self.problem = 0, "", ""
        if image is not None:
            await self._discard(image)

    async def _discard(self, image: SleepImage) -> None:
        with log_failure(f"removal of the image of {self._key}"):  # the next gateway deletes it
            await self._sleeping.discard(image)
