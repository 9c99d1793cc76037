"""Containers of which the engine has not told whether it made them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import structlog
from docker.errors import APIError, NotFound

from sessions.backends.docker.engine import Engine
from sessions.backends.docker.profile import volume_names
from sessions.tasks import spawn

log = structlog.get_logger()

#: pauses in seconds, while the engine answers, between the first looks for a container that may be made yet
SOON = (0.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: and between all further ones: an engine that was stuck may go on at any time with what nobody waits for any more
LATER = 300.0
#: the engine's answer when a volume is not there, and when a container has it. Source: Docker Engine API, VolumeDelete
_NOT_THERE, _IN_USE = 404, 409


class Lost:
    """Looks for them by the names that they would have, and removes those that are there, with their volumes.

    That the engine knows of none proves nothing, because it may be at work on it. So a name is looked for until it
    was found, or the gateway ends; the next one removes whatever bears this installation's label.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: searches that may find something any moment, and those that hardly will
        self._soon: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[None]] = set()

    def look_for(self, name: str, workspace: str) -> None:
        """Begin to look for a container, and the volumes that were made with it.

        Args:
            name: that it would have.
            workspace: whose volumes it would have.
        """
        _keep(self._soon, self._look_soon(name, workspace))

    async def _look_soon(self, name: str, workspace: str) -> None:
        for pause in SOON:
            await asyncio.sleep(pause)
            if await self._remove(name, workspace):
                return
        _keep(self._later, self._look_later(name, workspace))

    async def _look_later(self, name: str, workspace: str) -> None:
        found = False
        while not found:
            await asyncio.sleep(LATER)
            found = await self._remove(name, workspace)

    async def _remove(self, name: str, workspace: str) -> bool:
        """Remove what there is of it, however often that takes.

        Returns:
            whether there was a container; a volume alone may be one that a container is being made with.
        """
        found = await self._engine.insist(self._remove_container_blocking, name, name="removal of a lost container")
        for volume in volume_names(workspace):
            await self._engine.insist(self._remove_volume_blocking, volume, name=f"removal of volume {volume}")
        return found

    def _remove_container_blocking(self, name: str) -> bool:
        try:
            self._engine.api.remove_container(name, force=True)
        except NotFound:
            return False
        log.info("a container that nobody knew of was removed", container=name)
        return True

    def _remove_volume_blocking(self, volume: str) -> None:
        try:
            self._engine.api.remove_volume(volume, force=True)
        except APIError as error:
            # What another container has is removed with that one's session.
            if error.status_code not in {_NOT_THERE, _IN_USE}:
                raise

    async def give_up(self, seconds: float) -> None:
        """Look no longer than that: one that was being made a moment ago is there by then."""
        if self._soon:
            await asyncio.wait(self._soon, timeout=seconds)
        for search in [*self._soon, *self._later]:
            search.cancel()


def _keep(searches: set[asyncio.Task[None]], search: Coroutine[None, None, None]) -> None:
    task = spawn(search, "look for a container that may have been made")
    searches.add(task)
    task.add_done_callback(searches.discard)
