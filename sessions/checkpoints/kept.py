"""A session's snapshots: its kernel's memory and files at earlier moments, on disk. Clients call them checkpoints.

One class owns the list, its record in the ledger, and what is known of each snapshot. Two rules hold at each of its
steps. A snapshot is deleted only after the ledger names it no more, so that no gateway offers one that is gone. And one
that must go for a new one goes only after the new one is written and recorded, so that a refusal costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import structlog

from sessions.backends.base import Launch
from sessions.checkpoints.writing import Sleeping, expected_size
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, SleepImage, Snapshot
from sessions.model.errors import CheckpointNotFound, CheckpointRefused, LedgerUnavailable, SessionClosed, SessionError
from sessions.model.tasks import log_failure, spawn
from sessions.model.values import SessionKey
from sessions.tenants.sleep_disk import Room

log = structlog.get_logger()

#: snapshots of a session that its client asked for; the oldest go first
KEPT_MAX = 10
#: seconds after which a kernel no longer counts as the same
SAME_MAX = 30.0
#: processors that an idle kernel uses at most, and seconds of one that it takes to connect again after a snapshot
IDLE, RECONNECT = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Moment:
    """What a kernel has done so far: whether it is still the same can be told later."""

    kernel: Kernel
    #: when it was last used, and now, in seconds of the event loop's clock
    used_at: float
    now: float
    #: processor time so far in seconds; None: it is not measured
    computed: float | None

    @classmethod
    def of(cls, kernel: Kernel) -> Moment:
        """Return the present moment."""
        now = asyncio.get_running_loop().time()
        return cls(kernel, kernel.handle.used_at, now, kernel.handle.processor_seconds())

    def lasts(self, kernel: Kernel | None) -> bool:
        """Return whether the kernel is still as it was: it was not used since, and has hardly computed.

        A thread that the user's code has started may have gone on.
        """
        if kernel is not self.kernel or not kernel.alive or self.computed is None:
            return False
        present = Moment.of(kernel)
        elapsed = present.now - self.now
        if present.used_at != self.used_at or elapsed > SAME_MAX or present.computed is None:
            return False
        return present.computed - self.computed <= RECONNECT + IDLE * elapsed


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that was just written, and what its kernel had done by then."""

    snapshot: Snapshot
    moment: Moment


class Snapshots:
    """Keeps the snapshots of one session, oldest first, and decides which go."""

    def __init__(
        self,
        key: SessionKey,
        sleeping: Sleeping,
        record: Callable[[tuple[Snapshot, ...]], None],
        left: Sequence[Snapshot],
    ) -> None:
        """Begin.

        Args:
            key: of the session.
            sleeping: writes kernels to disk, and continues with them.
            record: records the session's snapshots for the next gateway. It raises `LedgerUnavailable` when that
                fails, and `SessionClosed` when the session was ended.
            left: snapshots that an earlier gateway has left.
        """
        self._key = key
        self._sleeping = sleeping
        self._record = record
        self._all: tuple[Snapshot, ...] = tuple(left)
        #: the one that was taken after the last cell, for the next one; clients do not see it yet
        self._ahead: Taken | None = None
        #: why none could be taken before the last cell; empty: one was, or none was wanted
        self.problem = ""
        for snapshot in left:
            sleeping.disk.keep(snapshot.image, key.tenant)
            self._let_go_for_newer(snapshot)

    # -- what there is --------------------------------------------------------------------------------------

    @property
    def all(self) -> tuple[Snapshot, ...]:
        """Those that clients see, oldest first."""
        return self._all

    @property
    def last_moment(self) -> Snapshot | None:
        """What the session returns to if its kernel ends: the moment before the last cell, or after it.

        None: the session would lose more than one cell.
        """
        if self._ahead is not None:
            return self._ahead.snapshot
        return next((snapshot for snapshot in self._all if snapshot.automatic and not snapshot.outdated), None)

    def find(self, name: str | None) -> Snapshot:
        """Return the snapshot with a name; without a name, the last one.

        Raises:
            CheckpointNotFound: when there is none.
        """
        for snapshot in reversed(self._all):
            if name in {None, snapshot.name}:
                return snapshot
        raise CheckpointNotFound(session=self._key.name, checkpoint=name)

    def still_counts_for(self, kernel: Kernel | None) -> bool:
        """Return whether the one that was taken ahead shows a kernel as it is now."""
        return self._ahead is not None and self._ahead.moment.lasts(kernel)

    # -- new ones -------------------------------------------------------------------------------------------

    def spare(self, *, automatic: bool) -> list[SleepImage]:
        """Return what may go for a new one if there is no room for it, the first ones first.

        For one that a client asks for, the tenant's oldest checkpoints; for an automatic one only the one before it.
        """
        if automatic:
            return [snapshot.image for snapshot in self._all if snapshot.automatic]
        return self._sleeping.disk.oldest_of(self._key.tenant)

    def room(self, kernel: Kernel, spare: Collection[SleepImage]) -> AbstractContextManager[Room]:
        """Have room on disk for a new one while it is written and kept.

        Raises:
            NoRoom: when there is none, even if all of `spare` goes; then nothing goes.
        """
        return self._sleeping.disk.room(self._key.tenant, expected_size(kernel), spare)

    async def copy(self, kernel: Kernel) -> SleepImage:
        """Write a kernel's memory and files to disk; see `Sleeping.copy`.

        Raises:
            SleepFailed: when that was not possible; the kernel goes on.
        """
        return await self._sleeping.copy(kernel)

    async def keep(self, taken: Taken) -> None:
        """Keep a new one as the last, in place of those of which there are too many.

        Raises:
            SessionClosed: when the session was ended meanwhile; the snapshot is deleted.
            CheckpointRefused: when that cannot be recorded; the snapshot is deleted.
        """
        snapshot = taken.snapshot
        kept = [other for other in self._all if not (snapshot.automatic and other.automatic)]
        asked = [other for other in kept if not other.automatic]
        surplus = [] if snapshot.automatic else asked[: max(0, len(asked) + 1 - KEPT_MAX)]
        self._let_go_for_newer(snapshot)
        try:
            await self._become((*(other for other in kept if other not in surplus), snapshot))
        except SessionError as error:
            await self.discard(snapshot)
            if isinstance(error, LedgerUnavailable):
                raise CheckpointRefused(f"no checkpoint could be taken: {error.message}") from error
            raise
        if snapshot.automatic:
            self.problem = ""

    async def put_ahead(self, taken: Taken) -> None:
        """Have one for the next cell."""
        self._ahead = taken
        self._let_go_for_newer(taken.snapshot)

    async def keep_ahead(self) -> None:
        """Keep the one that was taken ahead, because the next cell begins.

        Raises:
            SessionError: as in `keep`.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.keep(ahead)

    def passed_over(self) -> None:
        """Note that a cell begins before which none was taken: a return would undo more than that cell.

        Raises:
            LedgerUnavailable: when that cannot be recorded; the cell must not begin.
        """
        if self.last_moment is None:
            return
        outdated = tuple(replace(snapshot, outdated=snapshot.automatic) for snapshot in self._all)
        self._record(outdated)
        ahead, self._all, self._ahead = self._ahead, outdated, None
        if ahead is not None:
            spawn(self.discard(ahead.snapshot), f"removal of a checkpoint of {self._key}")

    # -- those that go --------------------------------------------------------------------------------------

    async def delete(self, snapshot: Snapshot) -> None:
        """Delete one.

        Raises:
            LedgerUnavailable: when that cannot be recorded; it stays.
        """
        await self._become([other for other in self._all if other.image.id != snapshot.image.id])

    async def forget_ahead(self) -> None:
        """Delete the one that was taken ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.discard(ahead.snapshot)

    async def forget_automatic(self, problem: str = "") -> None:
        """Delete all that were taken without a client's wish: the session does not return to them.

        Args:
            problem: why there is none from before the next cell; empty: none was wanted.
        """
        self.problem = problem
        await self.forget_ahead()
        kept = [snapshot for snapshot in self._all if not snapshot.automatic]
        try:
            await self._become(kept)
        except SessionError:  # a later gateway finds them in the ledger, but not on disk, and does not return to them
            await self._leave(kept)

    async def clear(self) -> None:
        """Delete all, because the session has ended, and its record with it."""
        await self.forget_ahead()
        await self._leave(())

    async def discard(self, snapshot: Snapshot) -> None:
        """Delete what a snapshot has on disk."""
        with log_failure(f"removal of a checkpoint of {self._key}"):  # the next gateway deletes it
            await self._sleeping.discard(snapshot.image)

    async def _become(self, kept: Sequence[Snapshot]) -> None:
        """Record other snapshots, and then delete those that the session has no more.

        Raises:
            LedgerUnavailable: when they cannot be recorded; nothing has changed.
            SessionClosed: when the session was ended; as above.
        """
        self._record(tuple(kept))
        await self._leave(kept)

    async def _leave(self, kept: Sequence[Snapshot]) -> None:
        """Delete all but these."""
        images = {snapshot.image.id for snapshot in kept}
        gone = [snapshot for snapshot in self._all if snapshot.image.id not in images]
        self._all = tuple(kept)
        for snapshot in gone:
            await self.discard(snapshot)

    def _let_go_for_newer(self, snapshot: Snapshot) -> None:
        """Have a snapshot deleted when there is no room for a newer one of the tenant."""

        async def drop() -> None:
            if self._ahead is not None and self._ahead.snapshot is snapshot:
                await self.forget_ahead()
            with suppress(SessionClosed):  # then all of them go
                await self.delete(snapshot)

        self._sleeping.disk.mark_replaceable(snapshot.image, self._key.tenant, drop)

    # -- the return -----------------------------------------------------------------------------------------

    async def restore(self, snapshot: Snapshot, launch: Launch) -> Kernel:
        """Start a kernel that continues from a snapshot, on files of its own.

        Raises:
            CheckpointRefused: when the snapshot cannot be used any more.
            SessionError: when no kernel could be started.
        """
        try:
            return await self._sleeping.restore(snapshot.image, launch, snapshot.info)
        except CannotWake as error:
            log.warning("a checkpoint cannot be used", session=str(self._key), name=snapshot.name, reason=str(error))
            raise CheckpointRefused(f"the checkpoint {snapshot.name!r} cannot be used: {error}") from error
