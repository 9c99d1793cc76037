"""How a snapshot of a session is taken, and kept."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from sessions.asleep import InUse, NoRoom, SleepFailed, Snapshot
from sessions.errors import CheckpointRefused, InvalidRequest, LedgerUnavailable, SessionClosed, SessionError
from sessions.moment import Moment
from sessions.names import valid_name
from sessions.slot import KernelSlot
from sessions.snapshots import Taken

log = structlog.get_logger()

#: keeps a snapshot
Use = Callable[[KernelSlot, Taken], Awaitable[None]]
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
    taken = await write(slot, name, keep)
    return taken.snapshot


async def write(slot: KernelSlot, name: str, use: Use) -> Taken:
    """Write a snapshot to disk. Clients of the session wait meanwhile.

    Args:
        slot: of a session in which no cell runs.
        name: of the snapshot.
        use: keeps it, while clients still wait: what they do afterwards is later than the snapshot.

    Raises:
        CheckpointRefused: when that was not possible.
        SessionError: when no kernel could be started, or the session was ended.
    """
    if slot.identity.spec.in_sandbox:
        raise CheckpointRefused("the session shares its files with other sessions")
    await slot.ensure()  # afterwards nothing else is being written
    return await slot.sleeper.checkpoint(partial(_written, slot, name, use))


async def _written(slot: KernelSlot, name: str, use: Use) -> Taken:
    kernel, automatic = slot.kernel, name == AUTOMATIC
    if kernel is None:
        raise _refused("the kernel has ended")
    try:
        if slot.listener.others_run:
            raise InUse("a cell of a channel client has begun")
        image = await slot.snapshots.copy(kernel, automatic=automatic)
    except SleepFailed as error:
        if not isinstance(error, NoRoom):  # its client is told all of it
            log.warning("a kernel cannot be copied", session=str(slot.key), reason=str(error))
        ended = "" if kernel.alive else ", and its kernel, which did not answer afterwards, was ended"
        raise _refused(f"{error.shown}{ended}") from error
    snapshot = Snapshot(name, image, kernel.handle.connection_info, automatic=automatic)
    if slot.listener.closed or slot.kernel is not kernel:
        await slot.snapshots.discard(snapshot)
        raise _refused("the kernel was ended or replaced")
    if automatic:
        slot.snapshots.outdated = False
    taken = Taken(snapshot, Moment.of(kernel))
    await use(slot, taken)
    return taken


def _refused(reason: str) -> CheckpointRefused:
    return CheckpointRefused(f"no checkpoint could be taken: {reason}")


async def keep(slot: KernelSlot, taken: Taken) -> None:
    """Keep a snapshot, in place of those for which there is no room any more.

    Raises:
        SessionClosed: when the session was ended meanwhile; the snapshot is deleted.
        CheckpointRefused: when that cannot be recorded; the snapshot is deleted.
    """
    try:
        if slot.listener.closed:
            raise SessionClosed
        await slot.record.keep_snapshots(slot.notice, slot.snapshots.with_new(taken.snapshot))
    except SessionError as error:
        await slot.snapshots.discard(taken.snapshot)
        if isinstance(error, LedgerUnavailable):
            raise _refused(error.message) from error
        raise
