"""What a session shares with the others, and needs of the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sessions.backends.base import KernelHandle, Launch
from sessions.execution import Patience
from sessions.kernel import Kernel
from sessions.ledger import Ledger
from sessions.models import ExecuteRequest, ExecutionResult, SessionKey
from sessions.quotas import Quotas


class KernelSource(Protocol):
    """Where a session gets its kernels from."""

    async def acquire(self, launch: Launch) -> Kernel:
        """A kernel that has answered, for nobody else.

        Args:
            launch: what it must be; without a workspace it brings one of its own.

        Raises:
            SessionError: there is none to be had.
        """

    async def hold(self, launch: Launch) -> KernelHandle:
        """A place for tools and files, without a kernel.

        Args:
            launch: what it must be; it has a workspace.

        Raises:
            SessionError: there is none to be had.
        """

    async def delete_workspace(self, workspace: str) -> None:
        """Delete what kernels of a session have written; when that fails it is tried again, and nobody is told."""


class Witness(Protocol):
    """Told of every cell, whichever way it came."""

    def begins(self, key: SessionKey, language: str, request: ExecuteRequest) -> str:
        """A cell is about to run.

        Returns:
            what to call it by.

        Raises:
            AuditUnavailable: it must not run.
            PolicyViolation: it may not.
        """

    def ended(self, key: SessionKey, execution: str, request: ExecuteRequest, result: ExecutionResult | None) -> None:
        """It has ended; without a result: it was never sent."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session shares with the others."""

    kernels: KernelSource
    quotas: Quotas
    clock: Callable[[], float]
    witness: Witness
    #: what must be known to go on after the gateway was killed
    ledger: Ledger
    patience: Patience
