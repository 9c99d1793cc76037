"""Going on with what an earlier gateway has left when it was killed, or was stopped to be replaced.

Sessions and sandboxes are known from the ledger as soon as there is a registry; until their kernels are taken over
they can be listed and ended, and whoever needs them is told to come again.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from sessions.backends.base import Backend
from sessions.models import SessionKey
from sessions.registry import Registry
from sessions.sandboxes import Sandboxes
from sessions.tasks import going_on

log = structlog.get_logger()

#: what the next execution is told
NOTE = "the gateway was restarted; the kernel has run on"
NOTE_CUT = (
    "the gateway was restarted while a cell ran: the cell has run on, its output of before is lost, "
    "and what came later stands in the session's notebook"
)


class Recovery:
    """Takes over everything once, when kernels can be reached."""

    def __init__(
        self, backend: Backend, registry: Registry, sandboxes: Sandboxes, interrupted: Collection[SessionKey] = ()
    ) -> None:
        """Let registry and sandboxes know what there was.

        Args:
            backend: where kernels run.
            registry: empty so far.
            sandboxes: empty so far.
            interrupted: sessions that ran a cell when the earlier gateway ended.
        """
        self._backend = backend
        self._registry = registry
        self._sandboxes = sandboxes
        self._interrupted = set(interrupted)
        sandboxes.restore()
        registry.restore()

    async def __call__(self) -> None:
        """Take the kernels over.

        Raises:
            BackendUnavailable: the engine does not answer; to be tried again.
        """
        sessions = [(session, session.left_at) for session in self._registry.all() if session.left_at]
        sandboxes = [(sandbox, sandbox.left_at) for sandbox in self._sandboxes.all()]
        places = [place for _, place in [*sessions, *sandboxes] if place]
        handles = await self._backend.adopt({place.id: place.info for place in places})
        for session, place in sessions:
            note = NOTE_CUT if session.key in self._interrupted else NOTE
            with going_on(f"taking over session {session.key}"):  # or it would be begun again with all the others
                await session.take_over(handles.get(place.id), note)
        for sandbox, held in sandboxes:  # after their sessions, which may have held the files
            with going_on(f"taking over sandbox {sandbox.key}"):
                await sandbox.take_over(handles.get(held.id) if held else None)
        if places:
            log.info("taken over from an earlier gateway", known=len(places), found=len(handles))
