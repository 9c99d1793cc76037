"""How a snapshot of a session is taken, and kept."""

from __future__ import annotations

import secrets
from functools import partial

import structlog

from sessions.asleep import InUse, NoRoom, SleepFailed, Snapshot
from sessions.errors import CheckpointRefused, InvalidRequest, LedgerUnavailable, SessionClosed, SessionError
from sessions.names import valid_name
from sessions.slot import KernelSlot

log = structlog.get_logger()

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
    taken = await write(slot, name)
    await keep(slot, taken)
    return taken


async def write(slot: KernelSlot, name: str) -> Snapshot:
    """Write a snapshot to disk, which is not kept yet. Clients of the session wait meanwhile.

    Args:
        slot: of a session in which no cell runs.
        name: of the snapshot.

    Raises:
        CheckpointRefused: when that was not possible.
        SessionError: when no kernel could be started.
    """
    if slot.identity.spec.in_sandbox:
        raise CheckpointRefused("the session shares its files with other sessions")
    await slot.ensure()  # afterwards nothing else is being written
    taken: list[Snapshot] = []
    if reason := await slot.sleeper.checkpoint(partial(_written, slot, name, taken)):
        raise CheckpointRefused(f"no checkpoint could be taken: {reason}")
    return taken[0]


async def _written(slot: KernelSlot, name: str, taken: list[Snapshot]) -> str:
    kernel = slot.kernel
    if kernel is None:
        return "the kernel has ended"
    try:
        if slot.listener.others_run:
            raise InUse("a cell of a channel client has begun")
        image = await slot.snapshots.copy(kernel, automatic=name == AUTOMATIC)
    except SleepFailed as error:
        if not isinstance(error, NoRoom):  # its client is told all of it
            log.warning("a kernel cannot be copied", session=str(slot.key), reason=str(error))
        return error.shown
    snapshot = Snapshot(name, image, kernel.handle.connection_info, automatic=name == AUTOMATIC)
    if slot.listener.closed or slot.kernel is not kernel:
        await slot.snapshots.discard(snapshot)
        return "the kernel was ended or replaced"
    taken.append(snapshot)
    return ""


async def keep(slot: KernelSlot, taken: Snapshot) -> None:
    """Keep a snapshot, in place of those for which there is no room any more.

    Raises:
        SessionClosed: when the session was ended meanwhile; the snapshot is deleted.
        CheckpointRefused: when that cannot be recorded; the snapshot is deleted.
    """
    try:
        if slot.listener.closed:
            raise SessionClosed
        await slot.record.keep_snapshots(slot.notice, slot.snapshots.with_new(taken))
    except SessionError as error:
        await slot.snapshots.discard(taken)
        if isinstance(error, LedgerUnavailable):
            raise CheckpointRefused(f"no checkpoint could be taken: {error.message}") from error
        raise
