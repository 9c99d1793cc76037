"""Kernels started ahead of need: handed out once, never taken back.

Only what is the same for everybody is kept warm: default limits, no extra environment, no workspace of an
earlier kernel. Anything else is started when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

import structlog

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.errors import SessionClosed, SessionError
from sessions.kernel import Kernel
from sessions.kernelspecs import KernelSpec
from sessions.models import Limits
from sessions.readiness import Readiness
from sessions.tasks import spawn

log = structlog.get_logger()


class Pool:
    """Warm kernels per language that is in use."""

    def __init__(self, backend: Backend, readiness: Readiness, limits: Limits, size: int) -> None:
        """Begin empty.

        Args:
            backend: where kernels run.
            readiness: whether they can be started there.
            limits: of the kernels kept warm.
            size: how many of each language.
        """
        self._backend = backend
        self._readiness = readiness
        self._limits = limits
        self._size = size
        self._warm: dict[str, deque[Kernel]] = defaultdict(deque)
        self._refilling: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def depth(self) -> int:
        """How many kernels wait."""
        return sum(kernel.alive for warm in self._warm.values() for kernel in warm)

    def keep_warm(self, kernelspec: KernelSpec) -> None:
        """See to it that a language has its warm kernels."""
        refilling = self._refilling.get(kernelspec.name)
        if not self._closed and (refilling is None or refilling.done()):
            self._refilling[kernelspec.name] = spawn(self._refill(kernelspec), f"warm {kernelspec.name}")

    async def _refill(self, kernelspec: KernelSpec) -> None:
        warm = self._warm[kernelspec.name]
        while len(warm) < self._size:
            try:
                self._readiness.require()
                kernel = await Kernel.start(self._backend, Launch(kernelspec, self._limits))
            except SessionError as error:
                log.warning("no warm kernel", language=kernelspec.name, code=error.code, reason=error.message)
                return  # the next acquire asks again
            warm.append(kernel)

    async def acquire(self, launch: Launch) -> Kernel:
        """A kernel for one session: a warm one that fits, or a new one.

        Raises:
            NotInitialized: the sandbox is not ready.
            StartFailed: it ended or stayed silent.
            BackendUnavailable: the engine does not answer.
        """
        self._readiness.require()
        if launch != Launch(launch.kernelspec, self._limits):
            return await Kernel.start(self._backend, launch)
        warm = self._warm[launch.kernelspec.name]
        while warm:
            kernel = warm.popleft()
            if kernel.alive:
                self.keep_warm(launch.kernelspec)
                return kernel
            spawn(self.delete_workspace(str(kernel.launch.workspace)), "delete workspace of a dead kernel")
        try:
            return await Kernel.start(self._backend, launch)
        finally:
            self.keep_warm(launch.kernelspec)

    async def hold(self, launch: Launch) -> KernelHandle:
        """A place for tools and files, without a kernel.

        Raises:
            NotInitialized: the sandbox is not ready.
            StartFailed: it could not be made.
            BackendUnavailable: the engine does not answer.
        """
        self._readiness.require()
        return await self._backend.start(launch)

    async def delete_workspace(self, workspace: str) -> None:
        """Delete what a session's kernels have written."""
        await self._backend.delete_workspace(workspace)

    async def close(self) -> None:
        """End the kernels that wait, and warm no more."""
        self._closed = True
        refilling = list(self._refilling.values())
        for task in refilling:
            task.cancel()  # a kernel that is just being started is ended on the way out
        await asyncio.gather(*refilling, return_exceptions=True)
        kernels = [kernel for warm in self._warm.values() for kernel in warm]
        await asyncio.gather(*(kernel.kill(SessionClosed()) for kernel in kernels))
        for kernel in kernels:
            if kernel.launch.workspace:
                await self._backend.delete_workspace(kernel.launch.workspace)
        self._warm.clear()
