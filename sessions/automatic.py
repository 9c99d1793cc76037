"""Snapshots that are taken without a client's wish, so that a cell which ends its kernel costs only itself.

A cell should not wait for its snapshot. So it is taken as soon as the cell before has ended, while the client thinks.
It counts if the kernel is still the same when the next cell comes. Otherwise another one is taken before the cell.
"""

from __future__ import annotations

import structlog

from sessions.asleep import Checkpoints
from sessions.errors import CheckpointRefused
from sessions.slot import KernelSlot
from sessions.states import State
from sessions.take_snapshot import AUTOMATIC, write

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
