"""How a session's checkpoints are taken and kept: those that clients want, and those before each cell."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection
from functools import partial

import structlog

from sessions.checkpoints.kept import Moment, Taken
from sessions.model.checkpoint import Checkpoints, InUse, NoRoom, SleepFailed, SleepImage, Snapshot
from sessions.model.errors import CheckpointRefused, InvalidRequest
from sessions.model.values import valid_name
from sessions.session.kernel_slot import KernelSlot
from sessions.session.states import State

log = structlog.get_logger()


#: takes over a snapshot that was just written
Use = Callable[[Taken], Awaitable[None]]
#: name of those that were taken without a client's wish
AUTOMATIC = "auto"


async def take(slot: KernelSlot, name: str | None) -> Snapshot:
    """Take a snapshot of a session in which no cell runs, because a client asks for it.

    Args:
        slot: of the session.
        name: of the snapshot; None: a new one.

    Raises:
        InvalidRequest: when the name is not valid, or another snapshot has it.
        CheckpointRefused: when that was not possible.
        SessionError: when no kernel could be started.
    """
    name = f"c-{secrets.token_hex(4)}" if name is None else valid_name("checkpoint", name)
    if name == AUTOMATIC or any(snapshot.name == name for snapshot in slot.snapshots.all):
        raise InvalidRequest(f"there is a checkpoint {name!r} already", field="name")
    taken = await write(slot, name, slot.snapshots.keep, slot.snapshots.spare(automatic=False))
    return taken.snapshot


async def write_for_branch(slot: KernelSlot) -> Snapshot:
    """Take a snapshot of a session in which no cell runs, which the caller discards. Nothing goes for it.

    Raises:
        SessionError: as in `write`.
    """

    async def use(_taken: Taken) -> None:
        """Keep it nowhere."""

    return (await write(slot, "branch", use)).snapshot


async def write(slot: KernelSlot, name: str, use: Use, spare: Collection[SleepImage] = ()) -> Taken:
    """Write a snapshot to disk. Clients of the session wait meanwhile.

    Args:
        slot: of a session in which no cell runs.
        name: of the snapshot.
        use: keeps it, while clients still wait: what they do afterwards is later than the snapshot.
        spare: what may go for it if there is no room, the first ones first.

    Raises:
        CheckpointRefused: when that was not possible.
        SessionError: when no kernel could be started, or the session was ended.
    """
    if slot.identity.spec.in_sandbox:
        raise CheckpointRefused("the session shares its files with other sessions")
    await slot.ensure()  # afterwards nothing else is being written
    return await slot.sleeper.checkpoint(partial(_written, slot, name, use, spare))


async def _written(slot: KernelSlot, name: str, use: Use, spare: Collection[SleepImage]) -> Taken:
    kernel = slot.kernel
    if kernel is None:
        raise _refused("the kernel has ended")
    try:
        if slot.listener.others_run:
            raise InUse("a cell of a channel client has begun")
        with slot.snapshots.room(kernel, spare) as room:
            image = await slot.snapshots.copy(kernel)
            snapshot = Snapshot(name, image, kernel.handle.connection_info, automatic=name == AUTOMATIC)
            if slot.listener.closed or slot.kernel is not kernel:
                await slot.snapshots.discard(snapshot)
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


class AutomaticSnapshots:
    """Takes the snapshots of one session to which it returns if a cell ends its kernel."""

    def __init__(self, slot: KernelSlot) -> None:
        """Take none yet."""
        self._slot = slot
        #: False: the session's client takes all checkpoints
        self.wanted = slot.identity.spec.checkpoints is Checkpoints.AUTO

    async def before_cell(self) -> None:
        """Have a snapshot of the present moment.

        If that is not possible, the cell runs without: the session's earlier snapshot would lose more than the cell.
        """
        if not self.wanted:
            return
        slot, snapshots = self._slot, self._slot.snapshots
        try:
            if snapshots.still_counts_for(slot.kernel):
                await snapshots.keep_ahead()
            else:
                await snapshots.forget_ahead()
                await write(slot, AUTOMATIC, snapshots.keep, snapshots.spare(automatic=True))
        except CheckpointRefused as error:
            log.warning("no checkpoint before a cell", session=str(slot.key), reason=error.message)
            await snapshots.forget_automatic(error.message)

    async def after_cell(self) -> None:
        """Take one for the next cell, if the session can be written now; else it is tried again before the cell."""
        slot, snapshots = self._slot, self._slot.snapshots
        if slot.state is not State.IDLE or snapshots.still_counts_for(slot.kernel):
            return
        await snapshots.forget_ahead()
        try:
            await write(slot, AUTOMATIC, snapshots.put_ahead)  # nothing goes for it: the last cell can still be undone
        except CheckpointRefused as error:
            log.info("no checkpoint after a cell", session=str(slot.key), reason=error.message)

    def passed_over(self) -> None:
        """Note that a cell begins before which none was taken.

        Raises:
            LedgerUnavailable: when that cannot be recorded; the cell must not begin.
        """
        self._slot.snapshots.passed_over()
