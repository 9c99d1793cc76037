"""Snapshots that are taken without a client's wish, so that a cell which ends its kernel costs only itself.

A cell should not wait for its snapshot. So it is taken as soon as the cell before has ended, while the client thinks.
It counts if the session was not used since, has hardly computed, and not much time has passed: a thread that the
user's code has started may go on meanwhile. Otherwise another one is taken before the cell.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from sessions.asleep import Checkpoints
from sessions.errors import CheckpointRefused
from sessions.kernels.kernel import Kernel
from sessions.slot import KernelSlot
from sessions.states import State
from sessions.take_snapshot import AUTOMATIC, keep, write

log = structlog.get_logger()

#: seconds after which a snapshot that was taken ahead no longer counts
AHEAD_MAX = 30.0
#: processors that an idle kernel uses at most, and seconds of one that it takes to connect again after a snapshot
IDLE, RECONNECT = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a kernel had done when a snapshot was taken."""

    kernel: Kernel
    #: when it was last used, and now, in seconds of the event loop's clock
    used_at: float
    now: float
    #: processor time so far in seconds; None: it is not measured
    computed: float | None

    @classmethod
    def of(cls, kernel: Kernel) -> _Moment:
        """Return the present moment."""
        now = asyncio.get_running_loop().time()
        return cls(kernel, kernel.handle.used_at, now, kernel.handle.processor_seconds())

    def lasts(self, kernel: Kernel | None) -> bool:
        """Return whether the kernel is still as it was."""
        if kernel is not self.kernel or not kernel.alive or self.computed is None:
            return False
        present = _Moment.of(kernel)
        elapsed = present.now - self.now
        if present.used_at != self.used_at or elapsed > AHEAD_MAX or present.computed is None:
            return False
        return present.computed - self.computed <= RECONNECT + IDLE * elapsed


class AutomaticSnapshots:
    """Takes the snapshots of one session to which it returns if a cell ends its kernel."""

    def __init__(self, slot: KernelSlot) -> None:
        """Take none yet."""
        self._slot = slot
        #: False: the session's client takes all checkpoints
        self.wanted = slot.identity.spec.checkpoints is Checkpoints.AUTO
        #: when the one was taken that is ahead
        self._moment: _Moment | None = None

    @property
    def _is_ahead(self) -> bool:
        """Whether the next cell needs no other one."""
        return (
            self._slot.snapshots.ahead is not None
            and self._moment is not None
            and self._moment.lasts(self._slot.kernel)
        )

    async def before_cell(self) -> None:
        """Have a snapshot of the present moment.

        If that is not possible, the cell runs without: the session's earlier snapshot would lose more than the cell.
        """
        if not self.wanted:
            return
        slot, snapshots = self._slot, self._slot.snapshots
        try:
            if not self._is_ahead:
                await snapshots.forget_ahead()
                snapshots.ahead = await write(slot, AUTOMATIC)
            ahead, snapshots.ahead = snapshots.ahead, None
            if ahead is not None:
                await keep(slot, ahead)
            snapshots.problem, snapshots.outdated = "", False
        except CheckpointRefused as error:
            log.warning("no checkpoint before a cell", session=str(slot.key), reason=error.message)
            snapshots.problem = error.message
            await snapshots.forget_automatic()

    async def after_cell(self) -> None:
        """Take one for the next cell, if the session can be written now; else it is tried again before the cell."""
        slot, snapshots = self._slot, self._slot.snapshots
        if not self.wanted or self._is_ahead or slot.state is not State.IDLE or slot.kernel is None:
            return
        await snapshots.forget_ahead()
        try:
            snapshots.ahead = await write(slot, AUTOMATIC)
        except CheckpointRefused as error:
            log.info("no checkpoint after a cell", session=str(slot.key), reason=error.message)
            return
        if slot.listener.closed or slot.kernel is None:
            await snapshots.forget_ahead()
        else:
            self._moment, snapshots.outdated = _Moment.of(slot.kernel), False

    def passed_over(self) -> None:
        """Note that a cell begins before which none was taken."""
        self._slot.snapshots.outdated = True
