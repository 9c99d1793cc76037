"""The sleep of one session's kernel: its memory on disk, and the attempts to wake it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from sessions.backends.base import Launch
from sessions.checkpoints.writing import KernelMemory
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import SessionClosed, StartFailed
from sessions.model.stopwatch import Operation, Stage, measured, timed
from sessions.model.tasks import log_failure
from sessions.model.values import SessionKey
from sessions.store.session_records import ContainerRecord

log = structlog.get_logger()

#: failed attempts to wake a kernel after which its memory counts as lost
FAILURES_MAX = 3


class MemoryObserver(Protocol):
    """Counts and times what happens to kernels' memory on disk."""

    def checkpoint(self, seconds: float, *, succeeded: bool) -> None:
        """An attempt to take a checkpoint has ended. The session's clients had to wait for these seconds."""

    def woken(self, seconds: float, *, succeeded: bool) -> None:
        """An attempt to wake a session has ended after these seconds."""

    def stages(self, operation: Operation, seconds: Mapping[Stage, float]) -> None:
        """A session was woken, rolled back or branched. `seconds` has the duration of each stage."""

    def rolled_back(self, *, crash: bool) -> None:
        """A session has returned to a checkpoint: by itself after a crash, or because its client has asked for it."""


@dataclass(slots=True)
class _Asleep:
    """A kernel that sleeps, and the result of the attempts to wake it."""

    image: SleepImage
    info: ConnectionInfo
    #: number of attempts to wake the kernel that failed
    failures: int = 0
    #: why its memory is lost; empty if it is not lost. The image stays until there is a fresh kernel, and so do the
    #: session's files
    loss: str = ""


class Sleeper:
    """Lets one session's kernel sleep, and wakes it."""

    def __init__(
        self,
        key: SessionKey,
        kernel_memory: KernelMemory,
        observer: MemoryObserver,
        clock: Callable[[], float],
        left: ContainerRecord | None,
    ) -> None:
        """Begin with the kernel that an earlier gateway has left, if that kernel sleeps.

        Args:
            key: key of the session.
            kernel_memory: writes kernels to disk, and wakes them.
            observer: counts and times the attempts.
            clock: function that returns seconds.
            left: record of the kernel that an earlier gateway has left. None means that there is none.
        """
        self._key = key
        self._kernel_memory = kernel_memory
        self._observer = observer
        self._clock = clock
        #: the kernel that sleeps; None while the session has no such kernel
        self._asleep: _Asleep | None = None
        if left is not None and left.asleep is not None:
            self._asleep = _Asleep(left.asleep, left.info)
            kernel_memory.disk.keep(left.asleep, key.tenant)
        #: why the last attempt to fall asleep failed, for the session's client; empty if it did not fail. No part of
        #: `_asleep`: the kernel that could not fall asleep is awake
        self.problem = ""

    @property
    def image(self) -> SleepImage | None:
        """The kernel's memory on disk. None means that the kernel does not sleep."""
        return None if self._asleep is None else self._asleep.image

    @property
    def loss(self) -> str:
        """Why the memory of the kernel that sleeps is lost; empty if it is not lost."""
        return "" if self._asleep is None else self._asleep.loss

    async def take(self, kernel: Kernel) -> SleepImage:
        """Write a kernel's memory to disk; see `KernelMemory.take`.

        Raises:
            SleepFailed: when the kernel could not be written; it continues.
        """
        try:
            image = await self._kernel_memory.take(kernel)
        except SleepFailed as error:
            self.problem = error.shown
            raise
        self.problem = ""
        if not kernel.alive:
            await self._discard(image)
            raise SleepFailed("it has ended")
        return image

    async def resume(self, kernel: Kernel, image: SleepImage) -> None:
        """Let a kernel continue whose memory was written, and delete its image."""
        await self._kernel_memory.resume(kernel, image)

    async def end_kernel(self, kernel: Kernel, image: SleepImage) -> None:
        """End a kernel whose image is recorded in the ledger."""
        self._asleep = _Asleep(image, kernel.handle.connection_info)
        await kernel.kill(SessionClosed())

    async def wake(self, launch: Launch) -> Kernel | None:
        """Wake the kernel. Its image stays until `forget`.

        Returns:
            the kernel. None means that no kernel sleeps, or that its memory is lost (`loss`).

        Raises:
            SessionError: when the kernel could not be woken now; a later attempt may succeed.
        """
        asleep, observer = self._asleep, self._observer
        if asleep is None or asleep.loss:
            return None
        try:
            with timed(self._clock, observer.woken), measured(Operation.WAKE, observer.stages):
                kernel = await self._kernel_memory.wake(asleep.image, launch, asleep.info)
        except CannotWake as error:
            self._lose(asleep, str(error))
            return None
        except StartFailed as error:
            asleep.failures += 1
            if asleep.failures < FAILURES_MAX:
                raise
            self._lose(asleep, error.message)
            return None
        log.info("session woken", session=str(self._key))
        return kernel

    def _lose(self, asleep: _Asleep, reason: str) -> None:
        asleep.loss = f"the session slept, and its kernel could not be woken: {reason}"
        log.warning("a kernel did not wake, and is lost", session=str(self._key), reason=reason)

    async def forget(self) -> None:
        """Delete the image, if there is one."""
        image, self._asleep, self.problem = self.image, None, ""
        if image is not None:
            await self._discard(image)

    async def _discard(self, image: SleepImage) -> None:
        with log_failure(f"removal of the image of {self._key}"):  # the next gateway deletes it
            await self._kernel_memory.discard(image)
