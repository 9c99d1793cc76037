"""A warm sandbox: a container for files and commands, and a kernel on the same workspace, both started ahead of need.

A workspace and the `/tmp` that containers share are mounted when a container is made, so a warm kernel cannot change to
the workspace of a sandbox. Therefore the sandbox takes the workspace of a warm kernel, together with a container of its
own that has been started on this workspace, too.
"""

from __future__ import annotations

import asyncio

from sessions.backends.base import KernelHandle, Launch
from sessions.kernels.kernel import Kernel
from sessions.kernels.preloading import Preloading
from sessions.model.errors import KernelDied, SessionError
from sessions.model.tasks import gather_all, spawn


class WarmSandbox:
    """One warm sandbox, from the start of its container and kernel until a sandbox takes them, or one of them ends."""

    def __init__(self, container: KernelHandle, kernel: Kernel) -> None:
        """Keep the arguments.

        Args:
            container: container without a kernel.
            kernel: kernel that has answered, on the same workspace.
        """
        self.container = container
        self.kernel = kernel
        self._container_end = spawn(container.wait(), "container of a warm sandbox")

    @property
    def workspace(self) -> str:
        """Its workspace."""
        return str(self.kernel.launch.workspace)

    @property
    def launch(self) -> Launch:
        """Order that its kernel was started with."""
        return self.kernel.launch

    @property
    def handle(self) -> KernelHandle:
        """Container or process of its kernel."""
        return self.kernel.handle

    @property
    def preloading(self) -> Preloading:
        """Imports of its kernel."""
        return self.kernel.preloading

    @property
    def alive(self) -> bool:
        """Whether its container and its kernel run."""
        return self.kernel.alive and not self._container_end.done()

    async def wait(self) -> SessionError:
        """Wait until its container or its kernel has ended, and return why."""
        kernel_end = spawn(self.kernel.wait(), "kernel of a warm sandbox")
        await asyncio.wait({kernel_end, self._container_end}, return_when=asyncio.FIRST_COMPLETED)
        if kernel_end.done():
            return kernel_end.result()
        kernel_end.cancel()
        return KernelDied(f"the container of a warm sandbox has ended: {self._container_end.result()}")

    async def kill(self, cause: SessionError) -> None:
        """End its container and its kernel, and wait until they have ended."""
        await gather_all(self.container.kill(), self.kernel.kill(cause))
