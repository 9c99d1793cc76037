"""Takes over the sessions and sandboxes of an earlier gateway that was killed, or was stopped to be replaced.

The registry knows sessions and sandboxes from the ledger at once. Until their kernels are taken over, clients can list
and end them; a client that needs a kernel gets an error and must try again.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from sessions.backends.base import Backend, KernelHandle
from sessions.kernels.start_queue import StartQueue
from sessions.model.errors import ConnectionFailed
from sessions.model.tasks import log_failure
from sessions.model.values import SessionKey
from sessions.sandbox.sandboxes import Sandboxes
from sessions.session.registry import Registry

log = structlog.get_logger()

#: reason that the next execution reports, without and with a running cell at the end of the earlier gateway
NOTE = "the gateway was restarted; the kernel kept running"
NOTE_CUT = (
    "the gateway was restarted while a cell ran: the cell kept running, its output from before the restart is lost, "
    "and its later output is in the session's notebook"
)


class Recovery:
    """Takes over all sessions and sandboxes once, when kernels can be reached."""

    def __init__(
        self,
        backend: Backend,
        starts: StartQueue,
        registry: Registry,
        sandboxes: Sandboxes,
        *,
        interrupted: Collection[SessionKey] = (),
    ) -> None:
        """Add the earlier gateway's sessions and sandboxes to the registries.

        Args:
            backend: where kernels run.
            starts: counts the kernels that are taken over.
            registry: registry of sessions, still empty.
            sandboxes: registry of sandboxes, still empty.
            interrupted: sessions that ran a cell when the earlier gateway ended.
        """
        self._backend = backend
        self._starts = starts
        self._registry = registry
        self._sandboxes = sandboxes
        self._interrupted = set(interrupted)
        sandboxes.restore()
        registry.restore()

    async def __call__(self) -> None:
        """Take the kernels over.

        Raises:
            BackendUnavailable: when the engine does not answer; the caller must try again.
        """
        sessions = [(session, session.left_container) for session in self._registry.all() if session.left_container]
        sandboxes = [(sandbox, sandbox.left_container) for sandbox in self._sandboxes.all()]
        places = [container for _, container in [*sessions, *sandboxes] if container]
        slept = {session: image for session in self._registry.all() if (image := session.sleep_image)}
        workspaces = {container.workspace for container in places} | {sandbox.workspace for sandbox, _ in sandboxes}
        workspaces |= {str(session.launch.workspace) for session in slept}
        kernels = {container.id: container.info for container in places}
        copies = [checkpoint.image for session in self._registry.all() for checkpoint in session.checkpoints.all]
        copies += self._sandboxes.snapshots.images
        handles = await self._backend.adopt(kernels, workspaces, [*slept.values(), *copies])
        paused = [sandbox for sandbox, _ in sandboxes if sandbox.pausing.paused]
        standing = {sandbox.workspace for sandbox in paused}
        for container in places:
            if container.workspace in standing and container.id in handles:
                await self._resume(handles[container.id])
        for session, container in sessions:
            if handle := handles.get(container.id):
                self._starts.count(handle, session.launch)
            note = NOTE_CUT if session.key in self._interrupted else NOTE
            # A failure must not reach the caller, who would take over all of them again.
            with log_failure(f"taking over session {session.key}"):
                await session.take_over(handles.get(container.id), note)
        for sandbox, held in sandboxes:  # after the sessions, whose containers may have preserved the files
            if held and (handle := handles.get(held.id)):
                self._starts.count(handle, sandbox.launch)
            with log_failure(f"taking over sandbox {sandbox.key}"):
                await sandbox.take_over(handles.get(held.id) if held else None)
        self._sandboxes.end_unfinished()
        for sandbox in paused:
            if not sandbox.closed:
                sandbox.pausing.begin()
        if places:
            log.info("taken over from an earlier gateway", known=len(places), found=len(handles))

    async def _resume(self, container: KernelHandle) -> None:
        """Resume a paused container, because a paused container cannot be taken over."""
        try:
            await container.resume()
        except ConnectionFailed as error:
            # Take over the other containers. This container counts as paused from outside: it is ended soon, unless a
            # client resumes it.
            log.warning("a paused container could not be resumed", container=container.id[:12], reason=error.message)
