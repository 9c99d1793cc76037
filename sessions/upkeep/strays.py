"""Stray kernels, which belong to no session, no sandbox and no warm pool. Only a defect makes a kernel stray.

Nobody would ever end a stray kernel, and it would count towards the memory of all kernels. So a kernel that has had no
owner for long is ended, logged and counted.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from sessions.backends.base import Backend, KernelHandle
from sessions.kernels.pool import Pool
from sessions.kernels.start_queue import StartQueue
from sessions.model.tasks import log_failure
from sessions.sandbox.sandbox import Sandbox
from sessions.sandbox.sandboxes import Sandboxes
from sessions.session.registry import Registry
from sessions.session.session import Session

log = structlog.get_logger()

#: seconds that a kernel may have no owner, while its owner changes or while it is being ended
OWNERLESS_MAX = 120.0


class Strays:
    """Finds and ends kernels without an owner."""

    def __init__(
        self,
        backend: Backend,
        starts: StartQueue,
        pool: Pool,
        registry: Registry,
        sandboxes: Sandboxes,
        *,
        clock: Callable[[], float],
        on_found: Callable[[], None],
    ) -> None:
        """Begin without stray kernels.

        Args:
            backend: where kernels run.
            starts: knows all kernels that were started.
            pool: owner of the warm kernels.
            registry: contains the sessions.
            sandboxes: all sandboxes.
            clock: returns seconds.
            on_found: called for each stray kernel that is ended.
        """
        self._backend = backend
        self._starts = starts
        self._pool = pool
        self._registry = registry
        self._sandboxes = sandboxes
        self._clock = clock
        self._on_found = on_found
        #: time since which each kernel has had no owner, in seconds of the clock
        self._since: dict[KernelHandle, float] = {}

    async def sweep(self) -> None:
        """End the kernels that have had no owner for too long. The culler calls this from time to time."""
        if self._backend.leftovers:
            return  # the engine cannot remove some containers now; the backend tries again
        now, owned = self._clock(), self._owned()
        self._since = {handle: self._since.get(handle, now) for handle in self._starts.running if handle not in owned}
        for handle in [handle for handle, since in self._since.items() if now - since >= OWNERLESS_MAX]:
            log.error("a kernel that belongs to nobody is ended", kernel=handle.id[:12])
            self._on_found()
            with log_failure("end of a kernel that belongs to nobody"):
                await self._end(handle, self._starts.running[handle].workspace)

    def _owners(self) -> list[Session | Sandbox]:
        return [*self._registry.all(), *self._sandboxes.all()]

    def _owned(self) -> set[KernelHandle | None]:
        return {*(owner.container for owner in self._owners()), *self._pool.handles()}

    async def _end(self, handle: KernelHandle, workspace: str | None) -> None:
        await handle.kill()
        if workspace is not None and workspace not in {owner.launch.workspace for owner in self._owners()}:
            await self._pool.delete_workspace(workspace)
