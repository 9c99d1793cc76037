"""What a session's slot tells about its kernels."""

from __future__ import annotations

from typing import Protocol

from sessions.errors import SessionError
from sessions.kernels.kernel import Kernel, KernelListener
from sessions.notices import StateNotice


class SlotListener(KernelListener, Protocol):
    """Gets the messages of a session's kernels, and their beginnings and ends."""

    @property
    def closed(self) -> bool:
        """Whether the session was ended."""

    @property
    def others_run(self) -> bool:
        """Whether a cell of a channel client runs."""

    def connected(self, kernel: Kernel) -> None:
        """The session has a new kernel, in place of the previous one."""

    def disconnected(self, cause: SessionError) -> None:
        """The session has no kernel any more: the variables of all earlier cells are gone."""

    def fell_asleep(self) -> None:
        """The session has no kernel any more, and gets it again with all variables."""

    def returning(self, kernel: Kernel) -> None:
        """A kernel has ended, and the session returns to a checkpoint; `ended` follows."""

    def ended(self, kernel: Kernel, cause: SessionError, after: StateNotice | None) -> None:
        """A kernel has ended, the present or a previous one; `after`: what became of the variables; None: lost."""
