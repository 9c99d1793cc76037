"""How a snapshot of a session is taken: when a client asks for one, and before each cell."""

from __future__ import annotations

import secrets
from functools import partial

import structlog

from sessions.asleep import Checkpoints, InUse, NoRoom, SleepFailed, SleepImage, Snapshot
from sessions.errors import CheckpointRefused, InvalidRequest, LedgerUnavailable
from sessions.kernels.kernel import Kernel
from sessions.names import valid_name
from sessions.slot import KernelSlot

log = structlog.get_logger()

#: name of the snapshot from before the last cell
AUTOMATIC = "auto"


async def take(slot: KernelSlot, name: str | None) -> Snapshot:
    """Take a snapshot of a session in which no cell runs. Its clients wait meanwhile.

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
    return await _take(slot, name)


async def before_cell(slot: KernelSlot) -> None:
    """Take the snapshot to which the session returns if the next cell ends its kernel.

    If that is not possible, the cell runs without: the session's earlier snapshot would lose more than the cell.
    """
    if slot.identity.spec.checkpoints is Checkpoints.MANUAL:
        return
    try:
        await _take(slot, AUTOMATIC)
        slot.snapshots.problem = ""
    except CheckpointRefused as error:
        log.warning("no checkpoint before a cell", session=str(slot.key), reason=error.message)
        slot.snapshots.problem = error.message
        await slot.snapshots.forget_automatic()


async def _take(slot: KernelSlot, name: str) -> Snapshot:
    if slot.identity.spec.in_sandbox:
        raise CheckpointRefused("the session shares its files with other sessions")
    await slot.ensure()  # afterwards nothing else is being written
    if reason := await slot.sleeper.checkpoint(partial(_written, slot, name)):
        raise CheckpointRefused(f"no checkpoint could be taken: {reason}")
    return slot.snapshots.find(name)


async def _written(slot: KernelSlot, name: str) -> str:
    kernel = slot.kernel
    if kernel is None:
        return "the kernel has ended"
    try:
        image = await _copied(slot, kernel, name)
    except SleepFailed as error:
        return error.shown
    snapshot = Snapshot(name, image, kernel.handle.connection_info, automatic=name == AUTOMATIC)
    if slot.listener.closed or slot.kernel is not kernel:
        await slot.snapshots.discard(snapshot)
        return "the kernel was ended or replaced"
    kept = slot.snapshots.with_new(snapshot)
    try:
        slot.record.snapshots(slot.notice, kept)
    except LedgerUnavailable as error:
        await slot.snapshots.discard(snapshot)
        return error.message
    await slot.snapshots.keep_only(kept)
    return ""


async def _copied(slot: KernelSlot, kernel: Kernel, name: str) -> SleepImage:
    if slot.listener.others_run:
        raise InUse("a cell of a channel client has begun")
    while True:
        try:
            return await slot.sleeper.copy(kernel)
        except NoRoom:  # the oldest go first, but none that a client has asked for goes for an automatic one
            before = slot.snapshots.all
            oldest = next((kept for kept in before if kept.automatic or name != AUTOMATIC), None)
            if oldest is None:
                raise
            await slot.snapshots.keep_only([kept for kept in before if kept is not oldest])
