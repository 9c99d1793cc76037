"""Snapshots that are taken without a client's wish, so that a cell which ends its kernel costs only itself.

A cell should not wait for its snapshot. So it is taken as soon as the cell before has ended, while the client thinks.
It counts if the kernel is still the same when the next cell comes. Otherwise another one is taken before the cell.
"""

from __future__ import annotations

import structlog

from sessions.asleep import Checkpoints
from sessions.errors import CheckpointRefused
from sessions.slot import KernelSlot
from sessions.snapshots import Taken
from sessions.states import State
from sessions.take_snapshot import AUTOMATIC, keep, write

log = structlog.get_logger()


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
        ahead = snapshots.ahead
        try:
            if ahead is not None and ahead.moment.lasts(slot.kernel):
                snapshots.ahead = None
                await keep(slot, ahead)
            else:
                await snapshots.forget_ahead()
                await write(slot, AUTOMATIC, keep)
            snapshots.problem = ""
        except CheckpointRefused as error:
            log.warning("no checkpoint before a cell", session=str(slot.key), reason=error.message)
            snapshots.problem = error.message
            await snapshots.forget_automatic()

    async def after_cell(self) -> None:
        """Take one for the next cell, if the session can be written now; else it is tried again before the cell."""
        slot, ahead = self._slot, self._slot.snapshots.ahead
        if slot.state is not State.IDLE or (ahead is not None and ahead.moment.lasts(slot.kernel)):
            return
        await slot.snapshots.forget_ahead()
        try:
            await write(slot, AUTOMATIC, _put_ahead)
        except CheckpointRefused as error:
            log.info("no checkpoint after a cell", session=str(slot.key), reason=error.message)

    def passed_over(self) -> None:
        """Note that a cell begins before which none was taken."""
        self._slot.snapshots.outdated = True


async def _put_ahead(slot: KernelSlot, taken: Taken) -> None:
    slot.snapshots.ahead = taken
