"""The services that all sessions and sandboxes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle, Launch
from sessions.model.egress import EgressTenants
from sessions.model.tenant_limits import OwnLimits, OwnLimitsOf
from sessions.model.values import ExecuteRequest, ExecutionEnd, SessionKey, Timeouts
from sessions.store.ledger import Ledger
from sessions.tenants.kept_bytes import KeptBytes
from sessions.tenants.quotas import Quotas
from sessions.tenants.traffic import Charge, LoopTime
from sessions.tenants.workspaces import WorkspaceDisk
from sessions.tools.servers import Caller, CellServers, NoToolServers, ToolServers

if TYPE_CHECKING:
    from sessions.checkpoints.sleep import MemoryObserver
    from sessions.checkpoints.writing import KernelMemory
    from sessions.kernels.kernel import Kernel  # commands that run no kernel start without the channels' libraries
    from sessions.kernels.warm_sandbox import WarmSandbox


class KernelSource(Protocol):
    """Supplies kernels, and containers without a kernel."""

    @property
    def keeps_files(self) -> bool:
        """Whether a workspace outlives the containers that use it. Otherwise it is deleted with the last of them."""

    @property
    def pauses(self) -> Ability:
        """Whether containers can be frozen."""

    async def acquire(self, launch: Launch) -> Kernel:
        """Return a kernel that has answered, for one session only.

        Args:
            launch: properties of the kernel. If it names no workspace, the kernel gets a new one.

        Raises:
            SessionError: when no kernel could be started.
        """

    async def start_container(self, launch: Launch) -> KernelHandle:
        """Start a container for tools and files, without a kernel.

        Args:
            launch: properties of the container, with a workspace.

        Raises:
            SessionError: when the container could not be started.
        """

    def take_sandbox(self, launch: Launch) -> WarmSandbox | None:
        """Return a container and a workspace that were made ahead of need, for one new sandbox only.

        Args:
            launch: properties of the container, without a workspace.

        Returns:
            None means that none fits: the sandbox starts its own container.

        Raises:
            SessionError: when no container could be started either.
        """

    async def delete_workspace(self, workspace: str) -> None:
        """Delete the files of a session's kernels. A failure is logged and retried later; the caller gets no error."""


class CellJournal(Protocol):
    """Records every execution of every dialect."""

    def begins(self, key: SessionKey, language: str, request: ExecuteRequest) -> str:
        """Record that a cell is about to run.

        Returns:
            the execution's id.

        Raises:
            AuditUnavailable: when the audit cannot record the cell, so it must not run.
            PolicyViolation: when the code policy forbids the cell.
            QuotaExceeded: when the audit's disk is nearly full, and the tenant has written its share of what is left.
        """

    def ended(self, key: SessionKey, execution: str, request: ExecuteRequest, end: ExecutionEnd | None) -> None:
        """Record the end of an execution. `end` is None when the code was never sent."""

    def left(self, execution: str) -> None:
        """Forget an execution that goes on when the gateway ends. The next gateway records its end."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """Services that all sessions and sandboxes share."""

    kernels: KernelSource
    quotas: Quotas
    clock: Callable[[], float]
    journal: CellJournal
    #: database of the sessions that the next gateway takes over
    ledger: Ledger
    timeouts: Timeouts
    #: writes kernels to disk, and restores them
    kernel_memory: KernelMemory
    observer: MemoryObserver
    #: counts bytes of a tenant's messages that wait for kernels; a number below 0 takes bytes away. Returns False, and
    #: counts nothing, if the tenant would have too many.
    waiting: Callable[[str, int], bool]
    #: which tenants may reach listed hosts
    egress: EgressTenants = field(default_factory=EgressTenants)
    #: bounds the bytes that all sessions keep of their cells
    kept: KeptBytes = field(default_factory=KeptBytes)
    #: bounds the bytes that the channel clients of all sessions have not read
    unread: KeptBytes = field(default_factory=KeptBytes)
    #: shares out the event loop among the messages of all kernels and of their clients
    loop_time: LoopTime = field(default_factory=LoopTime)
    #: shares out the disk for workspaces
    workspaces: WorkspaceDisk = field(default_factory=WorkspaceDisk)
    #: returns the limits that a tenant has of its own
    own_limits: OwnLimitsOf = OwnLimits
    #: calls the operator's servers of tools
    tool_servers: ToolServers = field(default_factory=NoToolServers)

    def servers_for(self, key: SessionKey, execution: str) -> CellServers:
        """Return the operator's servers of tools, as one cell may use them; `execution` is its id in the audit."""
        return CellServers(self.tool_servers, Caller(key, execution))

    def charge(self, tenant: str) -> Charge:
        """Return what a tenant is charged with for its kernels' messages."""
        time = self.loop_time
        return Charge(partial(self.waiting, tenant), partial(time.spend, tenant), partial(time.wait, tenant))
