"""A session's snapshots: its kernel's memory and files at earlier moments, on disk. Clients call them checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from sessions.asleep import CannotWake, NoRoom, SleepImage, Snapshot
from sessions.backends.base import Launch
from sessions.errors import CheckpointNotFound, CheckpointRefused
from sessions.kernels.kernel import Kernel
from sessions.models import SessionKey
from sessions.moment import Moment
from sessions.services import SessionServices
from sessions.tasks import log_failure

log = structlog.get_logger()

#: snapshots of a session that its client asked for; the oldest go first
KEPT_MAX = 10


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot, and what its kernel had done by then."""

    snapshot: Snapshot
    moment: Moment


class Snapshots:
    """Keeps the snapshots of one session, oldest first, and decides which go."""

    def __init__(self, key: SessionKey, services: SessionServices, left: Sequence[Snapshot]) -> None:
        """Begin.

        Args:
            key: of the session.
            services: services that sessions share.
            left: snapshots that an earlier gateway has left.
        """
        self._key = key
        self._services = services
        self.all: tuple[Snapshot, ...] = tuple(left)
        #: the one that was taken after the last cell, for the next one; clients do not see it yet
        self.ahead: Taken | None = None
        #: True: a cell has begun since, of which there is no snapshot from before it
        self.outdated = False
        #: why none could be taken before the last cell; empty: one was, or none was wanted
        self.problem = ""

    @property
    def last_moment(self) -> Snapshot | None:
        """What the session returns to if its kernel ends: the moment before the last cell, or after it.

        None: the session would lose more than one cell.
        """
        if self.outdated:
            return None
        if self.ahead is not None:
            return self.ahead.snapshot
        return next((snapshot for snapshot in self.all if snapshot.automatic), None)

    def find(self, name: str | None) -> Snapshot:
        """Return the snapshot with a name; without a name, the last one.

        Raises:
            CheckpointNotFound: when there is none.
        """
        for snapshot in reversed(self.all):
            if name in {None, snapshot.name}:
                return snapshot
        raise CheckpointNotFound(session=self._key.name, checkpoint=name)

    # -- new ones -------------------------------------------------------------------------------------------

    async def copy(self, kernel: Kernel, *, automatic: bool) -> SleepImage:
        """Write a kernel's memory and files to disk; see `Sleeping.copy`.

        If there is no room, the oldest go first, but none that a client has asked for goes for an automatic one.

        Raises:
            SleepFailed: when that was not possible; the kernel goes on.
        """
        while True:
            try:
                return await self._services.sleeping.copy(kernel)
            except NoRoom:
                if self.ahead is not None:
                    await self.forget_ahead()
                    continue
                oldest = next((kept for kept in self.all if kept.automatic or not automatic), None)
                if oldest is None:
                    raise
                await self.keep_only([kept for kept in self.all if kept is not oldest])

    def with_new(self, new: Snapshot) -> tuple[Snapshot, ...]:
        """Return the snapshots that are kept when there is a new one, which is the last."""
        others = [snapshot for snapshot in self.all if not (new.automatic and snapshot.automatic)]
        asked = [snapshot for snapshot in others if not snapshot.automatic]
        surplus = [] if new.automatic else asked[: max(0, len(asked) + 1 - KEPT_MAX)]
        return (*(snapshot for snapshot in others if snapshot not in surplus), new)

    # -- those that go --------------------------------------------------------------------------------------

    async def keep_only(self, kept: Collection[Snapshot]) -> None:
        """Delete all others, except the one that was taken ahead."""
        others = [snapshot for snapshot in self.all if snapshot not in kept]
        self.all = tuple(kept)
        for snapshot in others:
            await self.discard(snapshot)

    async def forget_ahead(self) -> None:
        """Delete the one that was taken ahead."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            await self.discard(ahead.snapshot)

    async def forget_automatic(self) -> None:
        """Delete all that were taken without a client's wish: the session does not return to them."""
        await self.forget_ahead()
        await self.keep_only([snapshot for snapshot in self.all if not snapshot.automatic])

    async def clear(self) -> None:
        """Delete all."""
        await self.forget_ahead()
        await self.keep_only(())

    async def discard(self, snapshot: Snapshot) -> None:
        """Delete what a snapshot has on disk."""
        with log_failure(f"removal of a checkpoint of {self._key}"):  # the next gateway deletes it
            await self._services.sleeping.discard(snapshot.image)

    # -- the return -----------------------------------------------------------------------------------------

    async def restore(self, snapshot: Snapshot, launch: Launch) -> Kernel:
        """Start a kernel that continues from a snapshot, on files of its own.

        Raises:
            CheckpointRefused: when the snapshot cannot be used any more.
            SessionError: when no kernel could be started.
        """
        try:
            return await self._services.sleeping.restore(snapshot.image, launch, snapshot.info)
        except CannotWake as error:
            log.warning("a checkpoint cannot be used", session=str(self._key), name=snapshot.name, reason=str(error))
            raise CheckpointRefused(f"the checkpoint {snapshot.name!r} cannot be used: {error}") from error
