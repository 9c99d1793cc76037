"""A session's checkpoints: its kernel's memory and files at earlier times, on disk.

One class owns the list of checkpoints, its record in the ledger, and what is known of each checkpoint. Each step of
the class keeps two rules. A checkpoint is deleted from disk only after it is deleted from the ledger, so that no
gateway offers a checkpoint that is gone. And a checkpoint is deleted to make room for a new one only after the new one
is written and recorded, so that a refused checkpoint costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import structlog

from sessions.backends.base import Launch
from sessions.checkpoints.writing import KernelMemory, expected_size
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, Checkpoint, SleepImage
from sessions.model.errors import CheckpointNotFound, CheckpointRefused, LedgerUnavailable, SessionClosed, SessionError
from sessions.model.tasks import log_failure, spawn
from sessions.model.values import SessionKey
from sessions.tenants.sleep_disk import Room

log = structlog.get_logger()

#: checkpoints of a session that its client asked for; the oldest are deleted first
KEPT_MAX = 10
#: seconds after which a kernel no longer counts as unchanged
SAME_MAX = 30.0
#: processors that an idle kernel uses at most, and processor seconds that it takes to connect again after a checkpoint
IDLE, RECONNECT = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a kernel had done at one time. It shows later whether the kernel has changed since."""

    kernel: Kernel
    #: time of the kernel's last use, and the present time, in seconds of the event loop's clock
    used_at: float
    now: float
    #: processor time of the kernel so far in seconds. None means that it is not measured.
    computed: float | None

    @classmethod
    def of(cls, kernel: Kernel) -> Fingerprint:
        """Return the fingerprint of a kernel at the present time."""
        now = asyncio.get_running_loop().time()
        return cls(kernel, kernel.handle.used_at, now, kernel.handle.processor_seconds())

    def unchanged(self, kernel: Kernel | None) -> bool:
        """Return whether a kernel is unchanged: the same kernel, not used since, and with little processor time since.

        The processor time shows threads of the user's code, which run between cells.
        """
        if kernel is not self.kernel or not kernel.alive or self.computed is None:
            return False
        present = Fingerprint.of(kernel)
        elapsed = present.now - self.now
        if present.used_at != self.used_at or elapsed > SAME_MAX or present.computed is None:
            return False
        return present.computed - self.computed <= RECONNECT + IDLE * elapsed


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint that was just written, and the fingerprint of its kernel."""

    checkpoint: Checkpoint
    fingerprint: Fingerprint


class KeptCheckpoints:
    """The checkpoints of one session, oldest first. Deletes the oldest beyond the limit."""

    def __init__(
        self,
        key: SessionKey,
        kernel_memory: KernelMemory,
        record: Callable[[tuple[Checkpoint, ...]], None],
        left: Sequence[Checkpoint],
    ) -> None:
        """Begin with the checkpoints that an earlier gateway has left.

        Args:
            key: key of the session.
            kernel_memory: writes kernels to disk, and restores them.
            record: records the session's checkpoints for the next gateway. It raises `LedgerUnavailable` when the
                ledger cannot be written, and `SessionClosed` when the session was ended.
            left: checkpoints that an earlier gateway has left.
        """
        self._key = key
        self._kernel_memory = kernel_memory
        self._record = record
        self._all: tuple[Checkpoint, ...] = tuple(left)
        #: the checkpoint that was taken after the last cell, for the next cell; clients do not see it yet
        self._ahead: Taken | None = None
        #: why no checkpoint could be taken before the last cell. Empty means that there is one, or none was wanted.
        self.problem = ""
        for checkpoint in left:
            kernel_memory.disk.keep(checkpoint.image, key.tenant)
            self._allow_eviction(checkpoint)

    # -- what there is --------------------------------------------------------------------------------------

    @property
    def all(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that clients see, oldest first."""
        return self._all

    @property
    def images(self) -> frozenset[str]:
        """The ids of the images of all checkpoints, also of those that clients do not see."""
        ahead = () if self._ahead is None else (self._ahead.checkpoint,)
        return frozenset(checkpoint.image.id for checkpoint in (*self._all, *ahead))

    @property
    def return_point(self) -> Checkpoint | None:
        """The checkpoint that the session returns to if its kernel ends: from before the last cell, or from after it.

        None means that there is no such checkpoint: an older one would undo more than one cell.
        """
        if self._ahead is not None:
            return self._ahead.checkpoint
        return next((checkpoint for checkpoint in self._all if checkpoint.automatic and not checkpoint.outdated), None)

    def find(self, name: str | None) -> Checkpoint:
        """Return the checkpoint with a name. None returns the last checkpoint.

        Raises:
            CheckpointNotFound: when there is no such checkpoint.
        """
        for checkpoint in reversed(self._all):
            if name in {None, checkpoint.name}:
                return checkpoint
        raise CheckpointNotFound(session=self._key.name, checkpoint=name)

    def ahead_is_current(self, kernel: Kernel | None) -> bool:
        """Return whether there is a checkpoint for the next cell, and the kernel is unchanged since."""
        return self._ahead is not None and self._ahead.fingerprint.unchanged(kernel)

    # -- new ones -------------------------------------------------------------------------------------------

    def evictable(self, *, automatic: bool) -> list[SleepImage]:
        """Return the images that may be deleted to make room for a new checkpoint, in the order of deletion.

        For a checkpoint that a client asks for, these are the tenant's oldest images. For an automatic checkpoint, this
        is only the image of the session's earlier automatic checkpoint.
        """
        if automatic:
            return [checkpoint.image for checkpoint in self._all if checkpoint.automatic]
        return self._kernel_memory.disk.oldest_of(self._key.tenant)

    def room(self, kernel: Kernel, evictable: Collection[SleepImage]) -> AbstractContextManager[Room]:
        """Reserve room on disk for a new checkpoint while it is written and kept.

        Raises:
            NoRoom: when there is no room, even without the images in `evictable`; then nothing is deleted.
        """
        return self._kernel_memory.disk.room(self._key.tenant, expected_size(kernel), evictable)

    async def copy(self, kernel: Kernel) -> SleepImage:
        """Write a kernel's memory and files to disk; see `KernelMemory.copy`.

        Raises:
            SleepFailed: when the kernel could not be written; it continues.
        """
        return await self._kernel_memory.copy(kernel)

    async def keep(self, taken: Taken) -> None:
        """Keep a new checkpoint as the last, and delete the oldest beyond the limit.

        Raises:
            SessionClosed: when the session was ended meanwhile; the new checkpoint is deleted.
            CheckpointRefused: when the ledger cannot be written; the new checkpoint is deleted.
        """
        checkpoint = taken.checkpoint
        kept = [other for other in self._all if not (checkpoint.automatic and other.automatic)]
        asked = [other for other in kept if not other.automatic]
        surplus = [] if checkpoint.automatic else asked[: max(0, len(asked) + 1 - KEPT_MAX)]
        self._allow_eviction(checkpoint)
        try:
            await self._replace_list((*(other for other in kept if other not in surplus), checkpoint))
        except SessionError as error:
            await self.discard(checkpoint)
            if isinstance(error, LedgerUnavailable):
                raise CheckpointRefused(f"no checkpoint could be taken: {error.message}") from error
            raise
        if checkpoint.automatic:
            self.problem = ""

    async def put_ahead(self, taken: Taken) -> None:
        """Hold a new checkpoint ready for the next cell."""
        self._ahead = taken
        self._allow_eviction(taken.checkpoint)

    async def keep_ahead(self) -> None:
        """Keep the checkpoint that is ready for the next cell, because the cell begins.

        Raises:
            SessionError: as in `keep`.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.keep(ahead)

    def mark_outdated(self) -> None:
        """Mark the automatic checkpoints as outdated, because a cell begins without a new one.

        The session no longer returns to them by itself: that would undo more than the last cell.

        Raises:
            LedgerUnavailable: when the mark cannot be recorded; the cell must not begin.
        """
        if self.return_point is None:
            return
        outdated = tuple(replace(checkpoint, outdated=checkpoint.automatic) for checkpoint in self._all)
        self._record(outdated)
        ahead, self._all, self._ahead = self._ahead, outdated, None
        if ahead is not None:
            spawn(self.discard(ahead.checkpoint), f"removal of a checkpoint of {self._key}")

    # -- deletion -------------------------------------------------------------------------------------------

    async def delete(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint.

        Raises:
            LedgerUnavailable: when the deletion cannot be recorded; the checkpoint stays.
        """
        await self._replace_list([other for other in self._all if other.image.id != checkpoint.image.id])

    async def forget_ahead(self) -> None:
        """Delete the checkpoint that is ready for the next cell, if there is one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.discard(ahead.checkpoint)

    async def forget_automatic(self, problem: str = "") -> None:
        """Delete all automatic checkpoints: the session does not return to them any more.

        Args:
            problem: why no checkpoint was taken before the next cell. Empty means that none was wanted.
        """
        self.problem = problem
        await self.forget_ahead()
        kept = [checkpoint for checkpoint in self._all if not checkpoint.automatic]
        try:
            await self._replace_list(kept)
        except SessionError:
            # The ledger still names them. A later gateway does not find them on disk, and does not use them.
            await self._delete_others(kept)

    async def clear(self) -> None:
        """Delete all checkpoints. The session has ended, and the ledger has no record of it."""
        await self.forget_ahead()
        await self._delete_others(())

    async def discard(self, checkpoint: Checkpoint) -> None:
        """Delete the image of a checkpoint. A failure is logged: the next gateway tries again."""
        with log_failure(f"removal of a checkpoint of {self._key}"):
            await self._kernel_memory.discard(checkpoint.image)

    async def _replace_list(self, kept: Sequence[Checkpoint]) -> None:
        """Record a new list of checkpoints, and then delete the checkpoints that are not in it.

        Raises:
            LedgerUnavailable: when the list cannot be recorded; nothing has changed.
            SessionClosed: when the session was ended; nothing has changed.
        """
        self._record(tuple(kept))
        await self._delete_others(kept)

    async def _delete_others(self, kept: Sequence[Checkpoint]) -> None:
        """Delete all checkpoints that are not in a list."""
        images = {checkpoint.image.id for checkpoint in kept}
        gone = [checkpoint for checkpoint in self._all if checkpoint.image.id not in images]
        self._all = tuple(kept)
        for checkpoint in gone:
            await self.discard(checkpoint)

    def _allow_eviction(self, checkpoint: Checkpoint) -> None:
        """Allow the deletion of a checkpoint when a newer image of the tenant needs its room."""

        async def drop() -> None:
            if self._ahead is not None and self._ahead.checkpoint is checkpoint:
                await self.forget_ahead()
            with suppress(SessionClosed):  # then `clear` deletes all checkpoints
                await self.delete(checkpoint)

        self._kernel_memory.disk.mark_replaceable(checkpoint.image, self._key.tenant, drop)

    # -- the return -----------------------------------------------------------------------------------------

    async def restore(self, checkpoint: Checkpoint, launch: Launch) -> Kernel:
        """Start a kernel that continues from a checkpoint, on its own copy of the files.

        Raises:
            CheckpointRefused: when the checkpoint cannot be used any more.
            SessionError: when no kernel could be started.
        """
        try:
            return await self._kernel_memory.restore(checkpoint.image, launch, checkpoint.info)
        except CannotWake as error:
            log.warning("a checkpoint cannot be used", session=str(self._key), name=checkpoint.name, reason=str(error))
            raise CheckpointRefused(f"the checkpoint {checkpoint.name!r} cannot be used: {error}") from error
