"""What clients do with a session's checkpoints."""

from __future__ import annotations

import asyncio
from functools import partial

from sessions.backends.base import Launch
from sessions.channels.hub import ChannelHub
from sessions.checkpoints.sleep import MemoryObserver
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import Snapshot
from sessions.model.errors import CheckpointRefused
from sessions.model.stopwatch import Stage, lap
from sessions.model.tasks import spawn
from sessions.model.values import Network, StateChange
from sessions.session.checkpointing import take, write_for_branch
from sessions.session.executions import Executions
from sessions.session.kernel_slot import KernelSlot
from sessions.session.record import Start


class Undo:
    """Takes checkpoints of one session, and returns to them."""

    def __init__(
        self, slot: KernelSlot, executions: Executions, channels: ChannelHub, observer: MemoryObserver
    ) -> None:
        """Use the parts of a session; `observer` gets its returns."""
        self._slot = slot
        self._executions = executions
        self._channels = channels
        self._observer = observer

    @property
    def all(self) -> tuple[Snapshot, ...]:
        """The checkpoints, oldest first."""
        return self._slot.snapshots.all

    @property
    def problem(self) -> str:
        """Why there is no checkpoint from before the last cell; empty: there is one, or none was wanted."""
        return self._slot.snapshots.problem

    def find(self, name: str) -> Snapshot:
        """Return the checkpoint with a name.

        Raises:
            CheckpointNotFound: when there is none.
        """
        return self._slot.snapshots.find(name)

    async def take(self, name: str | None) -> Snapshot:
        """Take a checkpoint when no cell runs.

        Args:
            name: of the checkpoint; None: a new one.

        Raises:
            InvalidRequest: when the name is not valid, or another checkpoint has it.
            CheckpointRefused: when that was not possible.
            SessionError: when the session was ended, or no kernel could be started.
        """
        taken = self._executions.between_cells(self._channels.quiet, partial(take, self._slot, name))
        return await asyncio.shield(spawn(taken, f"checkpoint of {self._slot.key}"))

    async def roll_back(self, name: str | None) -> None:
        """Return to a checkpoint, which stays. A running cell ends with its kernel.

        Args:
            name: of the checkpoint; None: the last one.

        Raises:
            CheckpointNotFound: when there is none.
            CheckpointRefused: when it cannot be used; the session stays as it is.
            SessionError: when the session was ended, or no kernel could be started; it stays as it is.
        """
        slot = self._slot
        snapshot = slot.snapshots.find(name)
        reason = f"the session was rolled back to the checkpoint {snapshot.name!r}"
        with self._channels.replacing():
            restore = partial(slot.snapshots.restore, snapshot)
            await slot.replace_for_client(StateChange.ROLLED_BACK, reason, restore)
        self._observer.rolled_back(crash=False)

    async def delete(self, name: str) -> None:
        """Delete a checkpoint.

        Raises:
            CheckpointNotFound: when there is none.
            LedgerUnavailable: when that cannot be recorded; it stays.
        """
        await self._slot.snapshots.delete(self.find(name))

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
        return partial(self._slot.snapshots.restore, self.find(name))

    async def _begin_now(self, launch: Launch) -> Kernel:
        """Start a kernel from a checkpoint that is no checkpoint of the session: it is there for this only."""
        snapshot = await self._executions.between_cells(self._channels.quiet, partial(write_for_branch, self._slot))
        lap(Stage.CHECKPOINT)
        try:
            return await self._slot.snapshots.restore(snapshot, launch)
        finally:
            await self._slot.snapshots.discard(snapshot)
