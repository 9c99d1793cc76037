"""A session's checkpoints: those that its clients take and return to, and those that are taken before each cell."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection
from functools import partial

import structlog

from sessions.backends.base import Launch
from sessions.channels.hub import ChannelHub
from sessions.checkpoints.kept import Moment, Taken
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import Checkpoints, InUse, NoRoom, SleepFailed, SleepImage, Snapshot
from sessions.model.errors import CheckpointRefused, InvalidRequest
from sessions.model.stopwatch import Stage, lap, timed
from sessions.model.tasks import spawn
from sessions.model.values import Network, StateChange, valid_name
from sessions.session.kernel_slot import KernelSlot, Wish
from sessions.session.record import Start
from sessions.session.services import SessionServices
from sessions.session.states import State
from sessions.session.turn import Turn

log = structlog.get_logger()

#: takes over a snapshot that was just written
Use = Callable[[Taken], Awaitable[None]]
#: name of those that were taken without a client's wish
AUTOMATIC = "auto"


class Checkpointing:
    """Takes the checkpoints of one session, returns to them, and begins branches with them."""

    def __init__(self, slot: KernelSlot, turn: Turn, channels: ChannelHub, services: SessionServices) -> None:
        """Take none yet.

        Args:
            slot: the session's kernel.
            turn: whose turn the kernel is.
            channels: the session's channel clients.
            services: services that sessions share.
        """
        self._slot = slot
        self._kept = slot.snapshots
        self._turn = turn
        self._channels = channels
        self._services = services
        #: whether one is taken before each cell; otherwise only when a client asks
        self._automatic = slot.identity.spec.checkpoints is Checkpoints.AUTO

    # -- what clients do ------------------------------------------------------------------------------------

    @property
    def all(self) -> tuple[Snapshot, ...]:
        """The checkpoints, oldest first."""
        return self._kept.all

    @property
    def problem(self) -> str:
        """Why there is no checkpoint from before the last cell; empty: there is one, or none was wanted."""
        return self._kept.problem

    def find(self, name: str) -> Snapshot:
        """Return the checkpoint with a name.

        Raises:
            CheckpointNotFound: when there is none.
        """
        return self._kept.find(name)

    async def take(self, name: str | None) -> Snapshot:
        """Take a checkpoint when no cell runs.

        Args:
            name: of the checkpoint; None: a new one.

        Raises:
            InvalidRequest: when the name is not valid, or another checkpoint has it.
            CheckpointRefused: when that was not possible.
            SessionError: when the session was ended, or no kernel could be started.
        """
        taken = self._turn.between_cells(partial(self._take, name))
        return await asyncio.shield(spawn(taken, f"checkpoint of {self._slot.key}"))

    async def _take(self, name: str | None) -> Snapshot:
        name = f"c-{secrets.token_hex(4)}" if name is None else valid_name("checkpoint", name)
        if name == AUTOMATIC or any(snapshot.name == name for snapshot in self.all):
            raise InvalidRequest(f"there is a checkpoint {name!r} already", field="name")
        return (await self._write(name, self._kept.keep, self._kept.spare(automatic=False))).snapshot

    async def roll_back(self, name: str | None) -> None:
        """Return to a checkpoint, which stays. A running cell ends with its kernel.

        Args:
            name: of the checkpoint; None: the last one.

        Raises:
            CheckpointNotFound: when there is none.
            CheckpointRefused: when it cannot be used; the session stays as it is.
            SessionError: when the session was ended, or no kernel could be started; it stays as it is.
        """
        snapshot = self._kept.find(name)
        reason = f"the session was rolled back to the checkpoint {snapshot.name!r}"
        with self._channels.replacing():
            restore = partial(self._kept.restore, snapshot)
            await self._slot.replace_for_client(Wish(StateChange.ROLLED_BACK, reason, restore))
        self._services.observer.rolled_back(crash=False)

    async def delete(self, name: str) -> None:
        """Delete a checkpoint.

        Raises:
            CheckpointNotFound: when there is none.
            LedgerUnavailable: when that cannot be recorded; it stays.
        """
        await self._kept.delete(self.find(name))

    def branch(self, name: str | None) -> Start:
        """Return what starts the first kernel of a branch of this session.

        Args:
            name: of the checkpoint with which it begins; None: it begins as the session is when no cell runs.

        Raises:
            CheckpointNotFound: when there is none.
            CheckpointRefused: when the session cannot be branched.
        """
        if self._slot.identity.spec.network is Network.ALLOWLIST:
            raise CheckpointRefused("a session with a network cannot be branched: its way out is for one session only")
        if name is None:
            return self._begin_now
        return partial(self._kept.restore, self.find(name))

    async def _begin_now(self, launch: Launch) -> Kernel:
        """Start a kernel from a checkpoint that is no checkpoint of the session: it is there for this only."""

        async def keep_nowhere(_taken: Taken) -> None:
            """Nothing goes for it, either."""

        taken = await self._turn.between_cells(partial(self._write, "branch", keep_nowhere))
        lap(Stage.CHECKPOINT)
        try:
            return await self._kept.restore(taken.snapshot, launch)
        finally:
            await self._kept.discard(taken.snapshot)

    # -- before and after cells -----------------------------------------------------------------------------

    async def before_cell(self) -> None:
        """Have a checkpoint of the present moment, if the session wants one before each cell.

        If that is not possible, the cell runs without: the session's earlier checkpoint would lose more than the cell.
        """
        if not self._automatic:
            return
        try:
            if self._kept.still_counts_for(self._slot.kernel):
                await self._kept.keep_ahead()
            else:
                await self._kept.forget_ahead()
                await self._write(AUTOMATIC, self._kept.keep, self._kept.spare(automatic=True))
        except CheckpointRefused as error:
            log.warning("no checkpoint before a cell", session=str(self._slot.key), reason=error.message)
            await self._kept.forget_automatic(error.message)

    def after_cell(self) -> None:
        """Take one for the next cell when the present one has ended, if the session wants one before each cell."""
        if self._automatic:
            spawn(self._turn.between_cells(self._take_ahead), "checkpoint after a cell")

    async def _take_ahead(self) -> None:
        """Take one for the next cell, if the session can be written now; else it is tried again before the cell."""
        if self._slot.state is not State.IDLE or self._kept.still_counts_for(self._slot.kernel):
            return
        await self._kept.forget_ahead()
        try:
            await self._write(AUTOMATIC, self._kept.put_ahead)  # nothing goes for it: the last cell can still be undone
        except CheckpointRefused as error:
            log.info("no checkpoint after a cell", session=str(self._slot.key), reason=error.message)

    def passed_over(self) -> None:
        """Note that a cell of a channel client begins, before which none was taken.

        Raises:
            LedgerUnavailable: when that cannot be recorded; the cell must not begin.
        """
        self._kept.passed_over()

    # -- writing --------------------------------------------------------------------------------------------

    async def _write(self, name: str, use: Use, spare: Collection[SleepImage] = ()) -> Taken:
        """Write a checkpoint to disk. Clients of the session wait meanwhile.

        Args:
            name: of the checkpoint.
            use: keeps it, while clients still wait: what they do afterwards is later than the checkpoint.
            spare: what may go for it if there is no room, the first ones first.

        Raises:
            CheckpointRefused: when that was not possible.
            SessionError: when no kernel could be started, or the session was ended.
        """
        slot, services = self._slot, self._services
        if slot.identity.spec.in_sandbox:
            raise CheckpointRefused("the session shares its files with other sessions")
        await slot.ensure()  # afterwards nothing else is being written
        with timed(services.clock, services.observer.checkpoint):
            return await slot.while_clients_wait(partial(self._written, name, use, spare))

    async def _written(self, name: str, use: Use, spare: Collection[SleepImage]) -> Taken:
        slot = self._slot
        kernel = slot.kernel
        if kernel is None:
            raise _refused("the kernel has ended")
        try:
            if self._channels.running:
                raise InUse("a cell of a channel client has begun")
            with self._kept.room(kernel, spare) as room:
                image = await self._kept.copy(kernel)
                snapshot = Snapshot(name, image, kernel.handle.connection_info, automatic=name == AUTOMATIC)
                if slot.state is State.CLOSED or slot.kernel is not kernel:
                    await self._kept.discard(snapshot)
                    raise _refused("the kernel was ended or replaced")
                taken = Taken(snapshot, Moment.of(kernel))
                await use(taken)
                await room.make()
        except SleepFailed as error:
            if not isinstance(error, NoRoom):  # its client is told all of it
                log.warning("a kernel cannot be copied", session=str(slot.key), reason=str(error))
            ended = "" if kernel.alive else ", and its kernel, which did not answer afterwards, was ended"
            raise _refused(f"{error.shown}{ended}") from error
        return taken


def _refused(reason: str) -> CheckpointRefused:
    return CheckpointRefused(f"no checkpoint could be taken: {reason}")
