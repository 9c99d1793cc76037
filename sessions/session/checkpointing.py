"""A session's checkpoints: clients take them and return to them; automatic ones are taken before each cell."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

import structlog

from sessions.backends.base import Launch
from sessions.cells.timeline import Timeline
from sessions.channels.hub import ChannelHub
from sessions.checkpoints.kept import Fingerprint, Taken
from sessions.debugging.debugger import Debugger
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import Checkpoint, CheckpointMode, InUse, NoRoom, SleepFailed, SleepImage
from sessions.model.errors import CheckpointRefused, InvalidRequest
from sessions.model.stopwatch import Stage, lap, timed
from sessions.model.tasks import spawn
from sessions.model.values import Network, StateChange, StateNotice, valid_name
from sessions.session.kernel_slot import KernelSlot, Replacement
from sessions.session.record import StartFunction
from sessions.session.services import SessionServices
from sessions.session.states import State
from sessions.session.turn import Turn

log = structlog.get_logger()

#: keeps a checkpoint that was just written
Keep = Callable[[Taken], Awaitable[None]]
#: why a kernel that has loaded the debugger has no checkpoints. With gVisor of 2024, no such kernel could be continued.
DEBUGGED = "a debugger was started in this kernel, which could perhaps not be continued; restart the session first"
#: name of automatic checkpoints, which no client has asked for
AUTOMATIC = "auto"


class Checkpointing:
    """Takes the checkpoints of one session, returns to them, and starts branches from them."""

    def __init__(
        self,
        slot: KernelSlot,
        turn: Turn,
        channels: ChannelHub,
        services: SessionServices,
        *,
        debugger: Debugger,
        timeline: Timeline,
    ) -> None:
        """Take no checkpoint yet.

        Args:
            slot: the session's kernel.
            turn: gives the kernel to one user at a time.
            channels: the session's channel clients.
            services: services that sessions share.
            debugger: the session's debugger. While it debugs a cell, a client that waits would perhaps wait for itself.
            timeline: remembers which cells each checkpoint comes after.
        """
        self._slot = slot
        self._kept = slot.checkpoints
        self._turn = turn
        self._channels = channels
        self._services = services
        self._debugger = debugger
        self._timeline = timeline
        #: whether a checkpoint is taken before each cell, and not only when a client asks for one
        self._automatic = slot.identity.spec.checkpoints is CheckpointMode.AUTO

    # -- what clients do ------------------------------------------------------------------------------------

    @property
    def all(self) -> tuple[Checkpoint, ...]:
        """The checkpoints, oldest first."""
        return self._kept.all

    def last_cell(self, checkpoint: Checkpoint) -> int | None:
        """Return the number of the last cell whose effects a checkpoint has; see `Timeline.last_of`."""
        return self._timeline.last_of(checkpoint.image.id)

    @property
    def problem(self) -> str:
        """Why there is no checkpoint from before the last cell. Empty means that there is one, or none was wanted."""
        return self._kept.problem

    def find(self, name: str) -> Checkpoint:
        """Return the checkpoint with a name.

        Raises:
            CheckpointNotFound: when there is no such checkpoint.
        """
        return self._kept.find(name)

    async def take(self, name: str | None) -> Checkpoint:
        """Take a checkpoint when no cell runs.

        Args:
            name: name of the checkpoint. None means a new random name.

        Raises:
            InvalidRequest: when the name is not valid, or another checkpoint has this name.
            CheckpointRefused: when no checkpoint could be taken.
            SessionError: when the session was ended, or no kernel could be started.
        """
        self._refuse_while_debugging()
        taken = self._turn.between_cells(partial(self._take, name))
        return await asyncio.shield(spawn(taken, f"checkpoint of {self._slot.key}"))

    async def _take(self, name: str | None) -> Checkpoint:
        name = f"c-{secrets.token_hex(4)}" if name is None else valid_name("checkpoint", name)
        if name == AUTOMATIC or any(checkpoint.name == name for checkpoint in self.all):
            raise InvalidRequest(f"there is a checkpoint {name!r} already", field="name")
        return (await self._write(name, self._kept.keep, self._kept.evictable(automatic=False))).checkpoint

    async def roll_back(self, name: str | None) -> None:
        """Return to a checkpoint, which stays. A running cell ends with its kernel.

        Args:
            name: name of the checkpoint. None means the last checkpoint.

        Raises:
            CheckpointNotFound: when there is no such checkpoint.
            CheckpointRefused: when the checkpoint cannot be used; the session stays as it is.
            SessionError: when the session was ended, or no kernel could be started; the session stays as it is.
        """
        checkpoint = self._kept.find(name)
        reason = f"the session was rolled back to the checkpoint {checkpoint.name!r}"
        with self._channels.replacing():
            restore = partial(self._kept.restore, checkpoint)
            await self._slot.replace_for_client(Replacement(StateChange.ROLLED_BACK, reason, restore, checkpoint))
        self._services.observer.rolled_back(crash=False)

    async def delete(self, name: str) -> None:
        """Delete a checkpoint.

        Raises:
            CheckpointNotFound: when there is no such checkpoint.
            LedgerUnavailable: when the deletion cannot be recorded; the checkpoint stays.
        """
        await self._kept.delete(self.find(name))

    def branch(self, name: str | None) -> StartFunction:
        """Return the function that starts the first kernel of a branch of this session.

        Args:
            name: name of the checkpoint that the branch begins with. None means the session's state when no cell runs.

        Raises:
            CheckpointNotFound: when there is no such checkpoint.
            CheckpointRefused: when the session cannot be branched.
        """
        if self._slot.identity.spec.network is Network.ALLOWLIST:
            raise CheckpointRefused("a session with a network cannot be branched: its way out is for one session only")
        if name is None:
            self._refuse_while_debugging()
            return self._begin_now
        return partial(self._kept.restore, self.find(name))

    def _refuse_while_debugging(self) -> None:
        if self._debugger.active:
            raise _refused("a cell is being debugged; go on with it or end it")

    async def _begin_now(self, launch: Launch) -> Kernel:
        """Start a kernel from a temporary checkpoint, which is deleted afterwards."""

        async def keep_nowhere(_taken: Taken) -> None:
            """Record nothing, and delete no other checkpoint: this one is temporary."""

        taken = await self._turn.between_cells(partial(self._write, "branch", keep_nowhere))
        lap(Stage.CHECKPOINT)
        try:
            return await self._kept.restore(taken.checkpoint, launch)
        finally:
            await self._kept.discard(taken.checkpoint)

    # -- together with other sessions -----------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let no cell run until the end of the `with` block. May be cancelled while it waits for a cell's end.

        Raises:
            ShuttingDown: when the gateway ends.
        """
        async with self._turn.taken():
            yield

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[Kernel]:
        """Yield the kernel, which nobody uses or replaces until the end of the `with` block. The caller has the turn.

        Raises:
            InUse: when a cell of a channel client has begun.
            SessionError: when the session was ended, or no kernel could be started.
        """
        async with self._slot.standing() as kernel:
            if self._channels.running:
                raise InUse("a cell of a channel client has begun")
            yield kernel

    @property
    def notice(self) -> StateNotice:
        """State of the variables, which the next execution reports."""
        return self._slot.notice

    # -- before and after cells -----------------------------------------------------------------------------

    async def before_cell(self) -> None:
        """Make sure that there is a checkpoint of the present state, if the session wants one before each cell.

        If no checkpoint can be taken, the cell runs without one. The earlier automatic checkpoint is deleted then: a
        return to it would undo more than the cell.
        """
        if not self._automatic:
            return
        try:
            if self._kept.ahead_is_current(self._slot.kernel):
                await self._kept.keep_ahead()
            else:
                await self._kept.forget_ahead()
                await self._write(AUTOMATIC, self._kept.keep, self._kept.evictable(automatic=True))
        except CheckpointRefused as error:
            log.warning("no checkpoint before a cell", session=str(self._slot.key), reason=error.message)
            await self._kept.forget_automatic(error.message)

    def after_cell(self) -> None:
        """Take a checkpoint when the present cell has ended, if the session wants one before each cell."""
        if self._automatic:
            spawn(self._turn.between_cells(self._take_ahead), "checkpoint after a cell")

    async def _take_ahead(self) -> None:
        """Take a checkpoint for the next cell if the session is idle. If that fails, `before_cell` tries again."""
        if self._slot.state is not State.IDLE or self._kept.ahead_is_current(self._slot.kernel):
            return
        await self._kept.forget_ahead()
        try:
            await self._write(AUTOMATIC, self._kept.put_ahead)  # deletes nothing: the last cell can still be undone
        except CheckpointRefused as error:
            log.info("no checkpoint after a cell", session=str(self._slot.key), reason=error.message)

    def mark_outdated(self) -> None:
        """Mark the automatic checkpoints as outdated: a channel client's cell begins without a new one.

        Raises:
            LedgerUnavailable: when the mark cannot be recorded; the cell must not begin.
        """
        self._kept.mark_outdated()

    # -- writing --------------------------------------------------------------------------------------------

    async def _write(self, name: str, keep: Keep, evictable: Collection[SleepImage] = ()) -> Taken:
        """Write a checkpoint to disk. Clients of the session wait meanwhile.

        Args:
            name: name of the checkpoint.
            keep: keeps the checkpoint while clients still wait: what they do afterwards is later than the checkpoint.
            evictable: images that may be deleted if there is no room, in the order of deletion.

        Raises:
            CheckpointRefused: when no checkpoint could be taken.
            SessionError: when no kernel could be started, or the session was ended.
        """
        slot, services = self._slot, self._services
        if slot.identity.spec.in_sandbox:
            raise CheckpointRefused("the session shares its files with other sessions")
        if (await slot.ensure()).debugged:  # returns when no other write is under way
            # Unlike an image of a kernel that falls asleep, a checkpoint is not tried, and clients would rely on it.
            raise _refused(DEBUGGED)
        with timed(services.clock, services.observer.checkpoint):
            return await slot.while_clients_wait(partial(self._write_now, name, keep, evictable))

    async def _write_now(self, name: str, keep: Keep, evictable: Collection[SleepImage]) -> Taken:
        slot = self._slot
        kernel = slot.kernel
        if kernel is None:
            raise _refused("the kernel has ended")
        try:
            if self._channels.running:
                raise InUse("a cell of a channel client has begun")
            with self._kept.room(kernel, evictable) as room:
                image = await self._kept.copy(kernel)
                checkpoint = Checkpoint(name, image, kernel.handle.connection_info, automatic=name == AUTOMATIC)
                if slot.state is State.CLOSED or slot.kernel is not kernel:
                    await self._kept.discard(checkpoint)
                    raise _refused("the kernel was ended or replaced")
                taken = Taken(checkpoint, Fingerprint.of(kernel))
                self._timeline.keep(image.id, self._kept.images)
                await keep(taken)
                await room.delete_displaced()
        except SleepFailed as error:
            if not isinstance(error, NoRoom):  # the client is told the whole reason
                log.warning("a kernel cannot be copied", session=str(slot.key), reason=str(error))
            ended = "" if kernel.alive else ", and its kernel, which did not answer afterwards, was ended"
            raise _refused(f"{error.shown}{ended}") from error
        return taken


def _refused(reason: str) -> CheckpointRefused:
    return CheckpointRefused(f"no checkpoint could be taken: {reason}")
