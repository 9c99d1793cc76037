"""The contract between backends and the rest of `sessions`, which uses nothing else of a backend.

To add one: write a module here, add its line to `kernel_gateway/isolation.py`, and run `test_contract.py` over it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager as AsyncContext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import kernel_image
from sessions.backends.abilities import Ability
from sessions.model.checkpoint import SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import SessionError
from sessions.model.kernelspecs import Inventory, KernelSpec
from sessions.model.values import KernelExit, Limits, SessionKey
from sessions.tenants.shares import NOBODY

#: folder of the programs that run beside user code; a container has them in another folder
KERNEL_IMAGE = Path(kernel_image.__file__).parent


@dataclass(frozen=True, slots=True)
class Launch:
    """Order to start one kernel."""

    kernelspec: KernelSpec
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: workspace that the kernel shares with the session's earlier kernels; None before the first one has a workspace
    workspace: str | None = None
    #: working directory, relative to the workspace; an absolute path lies in `/tmp`
    cwd: str = ""
    #: True if other containers use the workspace too and share its `/tmp`
    shared: bool = False
    #: tenant that the kernel is for; NOBODY: it is started ahead of need
    tenant: str = NOBODY
    #: image of the kernel; empty: the backend's usual one
    image: str = ""
    #: session whose code reaches the listed hosts through the egress proxy; None: the kernel reaches nothing
    egress: SessionKey | None = None

    @property
    def place(self) -> str | None:
        """What the kernel shares with the one that it replaces; None: nothing yet, or others share it, too."""
        return None if self.shared else self.workspace


def no_op(*_: object) -> None:
    """Do nothing: the default callback."""


class HandleListener(Protocol):
    """Uses a kernel's container or process."""

    @property
    def in_use(self) -> bool:
        """Whether something runs in it for a client."""

    def on_out_of_memory(self, handle: KernelHandle) -> None:
        """Take that the kernel or a process that it started ran out of memory; both may survive."""


class KernelHandle(Protocol):
    """One started kernel."""

    id: str
    connection_info: ConnectionInfo

    @property
    def used_at(self) -> float:
        """When it was last used, in seconds by any clock."""

    @property
    def preloaded(self) -> Collection[str]:
        """Modules that the kernel had imported, or tried to, when it was started."""

    def attach(self, listener: HandleListener, tenant: str) -> None:
        """Hand it to its present user, until it is gone.

        Args:
            listener: gets what happens to it.
            tenant: tenant that it works for; NOBODY: none yet.
        """

    def rouse(self) -> None:
        """Take that a message for the kernel follows. Kernels that nobody uses may be slow to react; must be cheap."""

    async def wait(self) -> KernelExit:
        """Wait until the kernel and all its resources are gone. The workspace stays."""

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel and return after the signal has arrived. Does nothing when the kernel is gone."""

    def memory(self) -> int | None:
        """Return the memory in use in bytes; None: the kernel is gone, or its memory is not measured. Must be cheap."""

    def processor_seconds(self) -> float | None:
        """Return the processor time used so far in seconds; None: as for `memory`. Must be cheap."""

    async def pause(self) -> None:
        """Stop everything in it where it is, with its memory.

        Raises:
            BackendUnavailable: when the engine does not answer, or refuses.
        """

    async def resume(self) -> None:
        """Let everything in it continue. Does nothing when it is gone or was not paused.

        Raises:
            BackendUnavailable: when the engine does not answer.
            ConnectionFailed: when the engine refuses.
        """

    async def kill(self) -> None:
        """End the kernel now and wait until it is gone, or later, if the engine does not answer. Idempotent."""

    def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools beside the kernel, as its user, in its workspace.

        Args:
            name: module of `kernel_image`.
            argument: the only argument of the tool; not secret.
            stdin: input of the tool.

        Yields:
            pieces of the tool's standard output. Closing the generator ends the tool.

        Raises:
            ConnectionFailed: when the tool could not be run.
        """


class KernelSleep(Protocol):
    """Writes kernels to disk and continues with them later; an ability that a backend need not have."""

    @property
    def ability(self) -> Ability:
        """Whether kernels can sleep here."""

    async def take(self, handle: KernelHandle, launch: Launch) -> SleepImage:
        """Write a kernel's memory to disk and hold it, for `kill` or `resume`; or raise SleepFailed, and it goes on."""

    async def resume(self, handle: KernelHandle) -> None:
        """Let a kernel go on whose memory was written."""

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> KernelHandle:
        """Continue with a kernel's memory and keys; the image stays. Raises CannotWake at its end, or as `start`."""

    def trial(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> AsyncContext[KernelHandle]:
        """As `wake`, while the kernel is held: what this one does to files is thrown away; it ends with the context."""

    async def copy(self, handle: KernelHandle, launch: Launch, goes_on: Callable[[], None]) -> SleepImage:
        """As `take`, with the kernel's files. Calls `goes_on` when the kernel goes on, as it does after an error."""

    async def restore(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> KernelHandle:
        """As `wake`, from a copy, in a new workspace: the launch's, which the caller deletes after an error."""

    async def discard(self, image: SleepImage) -> None:
        """Delete an image. Idempotent."""


class Backend(Protocol):
    """A place where kernels run."""

    name: str
    #: description of the isolation between kernels, shown to the operator
    isolation: str
    #: called when the proof of `prepare` may have become invalid, or may be possible again
    on_proof_needed: Callable[[], None]
    #: called after each attempt to restore a kernel, with True if it succeeded
    on_restored: Callable[[bool], None]

    @property
    def sleep(self) -> KernelSleep:
        """Whether and how kernels sleep."""

    @property
    def refusal(self) -> SessionError | None:
        """Why it starts no kernel until `prepare` has succeeded again; None: it starts kernels."""

    @property
    def keeps_files(self) -> bool:
        """Whether a workspace outlives the containers that use it; otherwise it goes with the last one."""

    @property
    def room(self) -> int:
        """Bytes that all workspaces together may have; 0: not known, or not limited."""

    @property
    def checkpoints(self) -> Ability:
        """Whether kernels are restored from a checkpoint in which their modules are imported."""

    @property
    def inventory(self) -> Inventory | None:
        """What kernels find installed; None before `prepare` has succeeded."""

    @property
    def leftovers(self) -> int:
        """Number of containers and volumes whose removal has failed and is retried."""

    async def prepare(self) -> None:
        """Set up what kernels need, and prove the isolation. Repeated from time to time.

        Raises:
            NotInitialized: when a requirement is missing or the proof fails; no kernel may be started.
            BackendUnavailable: when the engine does not answer.
        """

    async def settled(self) -> None:
        """Wait until it is known whether kernels are restored and can sleep; called after `adopt`."""

    async def adopt(
        self, kernels: Mapping[str, ConnectionInfo], workspaces: Collection[str], asleep: Collection[SleepImage] = ()
    ) -> Mapping[str, KernelHandle]:
        """Take over kernels that an earlier gateway of this installation started, and remove its other leftovers.

        Called after `prepare` has succeeded, before any kernel is started. Called again only after a failure.

        Args:
            kernels: connection info of the kernels, by the id of their handle.
            workspaces: workspaces that stay, those of `kernels` included. The files of all others are deleted.
            asleep: images of the kernels that sleep; all others are deleted.

        Returns:
            handles of the kernels that are left; one may have ended.

        Raises:
            BackendUnavailable: when the engine does not answer.
        """

    async def start(self, launch: Launch) -> KernelHandle:
        """Start a kernel. It may not listen yet when this method returns.

        Raises:
            StartFailed: when the kernel could not be started.
            NetworkNotAllowed: when it needs the egress proxy, and this backend has none.
            BackendUnavailable: when the engine does not answer.
        """

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a workspace that no kernel uses any more, if it exists; later, if the engine does not answer now."""

    async def release(self) -> None:
        """Free the resources of `prepare`, and leave the kernels to the next gateway."""

    async def close(self) -> None:
        """End all kernels that are left, and free the resources of `prepare`."""
