"""The contract of a backend. The rest of `sessions` uses nothing else of a backend.

To add a backend: write a package here, add its line to `kernel_gateway/isolation.py`, and run `test_contract.py` with
it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager as AsyncContext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import kernel_image
from kernel_image.protocol import SESSION
from sessions.backends.abilities import Ability
from sessions.model.checkpoint import SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import SessionError
from sessions.model.kernelspecs import Inventory, KernelSpec
from sessions.model.values import KernelExit, Limits, SessionKey
from sessions.tenants.shares import NOBODY

#: folder of the programs that run beside user code; in a container they have another path
KERNEL_IMAGE = Path(kernel_image.__file__).parent


@dataclass(frozen=True, slots=True)
class Launch:
    """The order to start one kernel."""

    kernelspec: KernelSpec
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: workspace of the session, which all its kernels use one after the other. None means a new workspace.
    workspace: str | None = None
    #: working directory, relative to the workspace or absolute
    cwd: str = ""
    #: whether other containers use the workspace too and share its `/tmp`
    shared: bool = False
    #: tenant that the kernel is for. NOBODY means that the kernel is started ahead of need.
    tenant: str = NOBODY
    #: name of the session that the kernel is for. Empty means none: the kernel is started ahead of need.
    session: str = ""
    #: image of the kernel. Empty means the backend's usual image.
    image: str = ""
    #: session whose code may reach the listed hosts through the egress proxy. None means no network.
    egress: SessionKey | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that make the kernel one of its session, in addition to those of all kernels."""
        return dict(self.env) | ({SESSION: self.session} if self.session else {})

    @property
    def place(self) -> str | None:
        """Place of the kernel in a `Budget`: its workspace, unless the workspace is new or shared by other kernels."""
        return None if self.shared else self.workspace


def no_op(*_: object) -> None:
    """Do nothing. This is the default callback."""


class HandleListener(Protocol):
    """The present user of a kernel's container or process."""

    @property
    def in_use(self) -> bool:
        """Whether something runs in the container or process for a client."""

    def on_out_of_memory(self, handle: KernelHandle) -> None:
        """Called when the kernel or a process that it started met the memory limit. Both may survive."""


class KernelHandle(Protocol):
    """One started kernel."""

    id: str
    connection_info: ConnectionInfo

    @property
    def used_at(self) -> float:
        """Time of the last use, in seconds. Only two values of the same backend can be compared."""

    @property
    def preloaded(self) -> Collection[str]:
        """Modules that the kernel had imported, or tried to import, when it was started."""

    def attach(self, listener: HandleListener, tenant: str) -> None:
        """Set the present user of the kernel.

        Args:
            listener: told what happens to the kernel.
            tenant: tenant that the kernel works for. NOBODY means no tenant yet.
        """

    def make_responsive(self) -> None:
        """Make the kernel react quickly again, because a message follows. Idle kernels may be slow. Must be cheap."""

    async def wait(self) -> KernelExit:
        """Wait until the kernel has ended and all its resources are freed. The workspace stays."""

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel, and return after it has arrived. Does nothing if the kernel has ended."""

    def memory(self) -> int | None:
        """Return the memory in use, in bytes. None if the kernel has ended or cannot be measured. Must be cheap."""

    def processor_seconds(self) -> float | None:
        """Return the processor time used so far, in seconds. None as in `memory`. Must be cheap."""

    async def pause(self) -> None:
        """Stop all processes of the kernel. They keep their memory.

        Raises:
            BackendUnavailable: when the engine does not answer, or refuses.
        """

    async def resume(self) -> None:
        """Let all processes of a paused kernel continue. Does nothing if the kernel has ended or is not paused.

        Raises:
            BackendUnavailable: when the engine does not answer.
            ConnectionFailed: when the engine refuses.
        """

    async def kill(self) -> None:
        """End the kernel, and wait until it has ended. If the engine does not answer, it is ended later. Idempotent."""

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


@dataclass(frozen=True, slots=True)
class Sharing:
    """The containers that share one workspace."""

    #: order to start one of them, which names the workspace
    launch: Launch
    #: kernels whose memory is written, each with the order that it was started with
    kernels: Sequence[tuple[KernelHandle, Launch]]
    #: all other containers
    others: Sequence[KernelHandle]


class KernelSleep(Protocol):
    """Writes kernels to disk and continues them later. Not every backend has this ability."""

    @property
    def ability(self) -> Ability:
        """Whether kernels can sleep here."""

    async def take(self, handle: KernelHandle, launch: Launch) -> SleepImage:
        """Write a kernel's memory to disk, and hold the kernel until `kill` or `resume`.

        Raises:
            SleepFailed: when that is not possible. The kernel then still runs.
        """

    async def resume(self, handle: KernelHandle) -> None:
        """Let a held kernel run again."""

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> KernelHandle:
        """Start a kernel that continues from an image, with the same keys. The image stays.

        Raises:
            CannotWake: when the image can never be used again.
            SessionError: as in `Backend.start`.
        """

    def trial(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> AsyncContext[KernelHandle]:
        """Start a second kernel from an image, as `wake` does, while the first kernel is held.

        The second kernel ends with the context, and its changes of files are discarded.
        """

    async def copy(self, handle: KernelHandle, launch: Launch, on_resumed: Callable[[], None]) -> SleepImage:
        """Write a kernel's memory and files to disk. The kernel is held only while they are written.

        Args:
            handle: the kernel.
            launch: order that the kernel was started with.
            on_resumed: called when the kernel runs again. After an error, the kernel runs even if this was not called.

        Raises:
            SleepFailed: when that is not possible.
        """

    async def restore(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> KernelHandle:
        """Start a kernel from an image of `copy`, as `wake` does, in the launch's workspace, which must be new.

        After an error, the caller deletes the workspace.
        """

    async def copy_together(self, shared: Sharing, on_resumed: Callable[[], None]) -> list[SleepImage]:
        """Write the memory of kernels that share a workspace, and the workspace's files, at one moment.

        Args:
            shared: the containers. All are held only while memory and files are written.
            on_resumed: called when all containers run again. After an error, they run even if this was not called.

        Returns:
            an image of each kernel, for `wake`, in the same order, and then the image of the files, for `unpack`.

        Raises:
            SleepFailed: when that is not possible. Then nothing was written.
        """

    async def unpack(self, files: SleepImage, launch: Launch) -> None:
        """Make the launch's workspace, which must be new, from the files in an image of `copy_together`.

        After an error, the caller deletes the workspace.

        Raises:
            CannotWake: when the image can never be used again.
            SessionError: as in `Backend.start`.
        """

    async def discard(self, image: SleepImage) -> None:
        """Delete an image. Idempotent."""


class Backend(Protocol):
    """A place where kernels run."""

    name: str
    #: description of the isolation between kernels, shown to the operator
    isolation: str

    @property
    def sleep(self) -> KernelSleep:
        """Writes kernels to disk and continues them."""

    @property
    def refusal(self) -> SessionError | None:
        """Why the backend starts no kernel until `prepare` has succeeded again. None means that it starts kernels."""

    @property
    def keeps_files(self) -> bool:
        """Whether a workspace outlives its containers. Otherwise it ends with the last container that uses it."""

    @property
    def keeps_kernels(self) -> bool:
        """Whether kernels run on when the gateway ends, after `release` or a crash. Otherwise they end with it."""

    @property
    def room(self) -> int:
        """Bytes that all workspaces together may have. 0 means unknown or not limited."""

    @property
    def golden_images(self) -> Ability:
        """Whether kernels are restored from golden images, in which their modules are already imported."""

    @property
    def pauses(self) -> Ability:
        """Whether `KernelHandle.pause` can freeze kernels."""

    @property
    def inventory(self) -> Inventory | None:
        """The installed interpreters and packages. None before `prepare` has succeeded."""

    @property
    def leftovers(self) -> int:
        """Number of containers and volumes whose removal has failed and is retried."""

    def report_doubts(self, listener: Callable[[], None]) -> None:
        """Call one more listener when the proof of `prepare` may no longer hold, or may be possible again."""

    def report_restores(self, listener: Callable[[bool], None]) -> None:
        """Call one more listener after each attempt to restore a kernel from a golden image, with True if it succeeded.

        A backend without golden images never calls it.
        """

    async def prepare(self) -> None:
        """Set up everything that kernels need, and prove the isolation. Called again from time to time.

        Raises:
            NotInitialized: when a requirement is missing or the proof fails. Then no kernel may be started.
            BackendUnavailable: when the engine does not answer.
        """

    async def settled(self) -> None:
        """Wait until it is known whether kernels can be restored and can sleep. Called after `adopt`."""

    async def adopt(
        self, kernels: Mapping[str, ConnectionInfo], workspaces: Collection[str], asleep: Collection[SleepImage] = ()
    ) -> Mapping[str, KernelHandle]:
        """Take over the kernels that an earlier gateway of this installation started, and remove its other leftovers.

        Called after `prepare` has succeeded, before any kernel is started. Called again only after a failure.

        Args:
            kernels: connection info of the kernels, by the id of their handle.
            workspaces: workspaces that stay, also those of `kernels`. The files of all other workspaces are deleted.
            asleep: images that stay. All other images are deleted.

        Returns:
            handles of the kernels that may still run. Some of these kernels may have ended.

        Raises:
            BackendUnavailable: when the engine does not answer.
        """

    async def start(self, launch: Launch) -> KernelHandle:
        """Start a kernel. It may not listen yet when this method returns.

        Raises:
            StartFailed: when the kernel could not be started.
            NetworkNotAllowed: when the kernel needs the egress proxy, and this backend has none.
            BackendUnavailable: when the engine does not answer.
        """

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a workspace that no kernel uses any more. If the engine does not answer, it is deleted later."""

    async def release(self) -> None:
        """Free the resources of `prepare`. The kernels stay for the next gateway."""

    async def close(self) -> None:
        """End all kernels, and free the resources of `prepare`."""
